"""The contexts of this process, of all communicators that hpcoll serves."""

from collections.abc import Callable, Sequence
from typing import Any

WITNESSES: list[Callable[[Sequence[int]], str]] = []  # they say which of some ranks of COMM_WORLD is known to have ended, and how
LIVE: dict[Any, None] = {}  # until their communicator is freed; listed in one go, while other threads make some
