"""The import of hpcoll ends with a command that installs what is missing, where a part lacks what it needs."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # of a checkout

try:
    import ml_dtypes  # noqa: F401
    import numpy  # noqa: F401
except ModuleNotFoundError as error:
    text = f"{error.name} is missing; this installs hpcoll and what it needs: python -m pip install {ROOT}"
    if sys.argv[:1] == ["-m"]:  # as Python looks for hpcoll.__main__: a command, which prints no traceback
        print(f"hpcoll: {text}", file=sys.stderr)
        sys.exit(2)
    raise ModuleNotFoundError(text, name=error.name) from None
