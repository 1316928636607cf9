"""What every part of hpcoll needs is there, or the import ends with the command that installs it."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # of a checkout

try:
    import ml_dtypes  # noqa: F401
    import numpy  # noqa: F401
except ModuleNotFoundError as error:
    text = f"{error.name} is missing; this installs hpcoll and what it needs: python -m pip install {ROOT}"
    raise ModuleNotFoundError(text, name=error.name) from None
