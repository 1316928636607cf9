"""What the system says of this processor's caches."""

import contextlib
from functools import cache
from pathlib import Path

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_USUAL_NBYTES = 32 << 20  # of the last level, where the system does not say


@cache
def last_level_nbytes(folder: Path = _CACHES) -> int:
    """Bytes of the largest cache that the first core uses, with others or alone."""
    with contextlib.suppress(OSError, ValueError):  # another system, or one that hides it
        return max(_nbytes((one / "size").read_text()) for one in folder.glob("index*"))
    return _USUAL_NBYTES


def _nbytes(text: str) -> int:
    """``"32768K\\n"`` and its like."""
    number, unit = text.strip()[:-1], text.strip()[-1:]
    return int(number) << {"K": 10, "M": 20, "G": 30}[unit] if unit in "KMG" else int(text)
