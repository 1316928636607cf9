"""The double as tests have it: for one test or for those of a file, which fail when they leave races or call the driver wrongly."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cuda_double.double import Double, install
from hpcoll.runtime.gpu import cuda, device


@contextmanager
def installed(
    ngpus: int = 1, *, takes: bool | None = None, forgives: tuple[str, ...] = (), **options: Any
) -> Iterator[Double]:
    """A double in place of the driver; what hpcoll found out about another GPU is forgotten before and after.

    The collector leaves older objects alone meanwhile: a process that has run many tests has too many of them to look through each time.

    Args:
        ngpus: That this process sees.
        takes: Whether the MPI library takes its memory, which the host can read then. None: hpcoll finds out, where no double is.
        forgives: "races" that are left, "failures" of calls: all others are errors in the end.
        options: Of `install`.
    """
    one = install(ngpus, readable=bool(takes), **options)
    with pytest.MonkeyPatch.context() as patch:
        if takes is not None:
            from hpcoll.comm.gpu import (
                messages,  # need MPI
                resources,  # need MPI
            )

            for module in (resources, messages):
                patch.setattr(module, "takes_gpu_memory", lambda gpu: takes)
        _forget()
        assert cuda.driver() is not None
        gc.freeze()
        try:
            yield one
        finally:
            if any(one.memory):
                gc.collect()  # whoever holds it lets it go while the driver is there
            gc.unfreeze()
            one.uninstall()
            _forget()
    for what in {"races", "failures"} - set(forgives):
        assert getattr(one, what) == [], what


@contextmanager
def blamed(double: Double) -> Iterator[Double]:
    """A double that several tests use, during one of them: what went wrong meanwhile is that one's failure."""
    yield double
    found = list(double.races), list(double.failures)
    double.races.clear()
    double.failures.clear()
    assert found == ([], [])


def _forget() -> None:
    """Forget what hpcoll knows about GPUs."""
    device.gpu_of.cache_clear()
    messages: Any = sys.modules.get("hpcoll.comm.gpu.messages")
    if messages:
        messages._takes.cache_clear()
