#!/usr/bin/env bash
# All checks, on a machine with nothing but Python 3.10 or newer and a package index that pip reaches: tests/run.sh --help, tests/README.md.
exec "${PYTHON:-python3}" "$(dirname "$0")/run.py" "$@"
