#!/usr/bin/env bash
# Makes and tries a release: wheel and sdist, the same bytes each time, checked, and installed into fresh environments of many releases of
# Python, NumPy, Numba, mpi4py and MPI libraries, where every collective runs on two ranks. Publishes nothing. tests/release.py has more.
exec "${PYTHON:-python3}" "$(dirname "$0")/../tests/release.py" "$@"
