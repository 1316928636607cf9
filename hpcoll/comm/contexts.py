"""The contexts of this process, of all communicators that hpcoll serves."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

WITNESSES: list[Callable[[Sequence[int]], str]] = []  # they say which of some ranks of COMM_WORLD is known to have ended, and how
LIVE: "weakref.WeakSet[Any]" = weakref.WeakSet()
