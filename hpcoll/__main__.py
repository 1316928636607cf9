"""``python -m hpcoll`` is the command ``hpcoll``."""

import sys

from hpcoll.cli import main

if __name__ == "__main__":
    sys.exit(main())
