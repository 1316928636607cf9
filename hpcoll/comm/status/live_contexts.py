"""The contexts of this process, of all communicators that hpcoll serves."""

from collections.abc import Callable, Sequence
from typing import Any

failure_detectors: list[Callable[[Sequence[int]], tuple[int, str] | None]] = []  # of some ranks of COMM_WORLD one that has ended, and how
live_contexts: dict[Any, None] = {}  # until their communicator is freed; listed in one go, while other threads make some
