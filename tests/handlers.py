"""Handlers of signals that raise: where a program's would leave a call, without a signal and its chance."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Alarm(Exception):
    """The exception of a program's handler."""


@contextmanager
def raising(function: str, module: str) -> Iterator[None]:
    """An `Alarm` as the function of that module is about to run, once."""

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name == function and frame.f_globals["__name__"] == module:
            sys.setprofile(None)
            raise Alarm

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
