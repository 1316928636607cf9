"""Modes and sizes of ``hpcoll bench``, which need no MPI, and the examples in its modules."""

import doctest
from typing import Any

import numpy as np
import pytest

from hpcoll.base.errors import ArgumentError
from hpcoll.cli.bench import earlier, messages, modes


def test_hidden_share_is_of_the_shorter() -> None:
    comm, work = np.array([4.0, 4.0, 4.0]), np.array([2.0, 2.0, 2.0])
    assert modes.hidden_share(comm, work, comm) == 1
    assert modes.hidden_share(comm, work, comm + work) == 0
    assert modes.hidden_share(comm, work, np.array([7.0, 5.0, 5.5])) == 0.25


def test_work_takes_time_in_proportion_and_allocates_nothing() -> None:
    import tracemalloc
    from time import thread_time  # others may have the core meanwhile

    works, least = {slices: modes.work(slices) for slices in (200, 2000)}, {200: 1.0, 2000: 1.0}
    for _ in range(15):
        for slices, passes in works.items():
            start = thread_time()
            passes()
            least[slices] = min(least[slices], thread_time() - start)
    assert 3 < least[2000] / least[200] < 30
    passes = modes.work(1000)
    passes()
    tracemalloc.start()
    passes()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4096


@pytest.mark.parametrize(
    "arguments",
    [
        ("8", "4", None, 2),
        ("0", None, None, 2),
        ("8", None, "0", 2),
        ("8", None, None, 1),
        ("1", "1M", "1", 2),
    ],
)
def test_sizes_that_make_no_sense(arguments: tuple[str, str | None, str | None, int]) -> None:
    with pytest.raises(ArgumentError, match=r"sizes need|stepfactor must|stepbytes (must|makes)"):
        messages.sizes_of(*arguments)


def test_sizes() -> None:
    assert messages.sizes_of("8", "64", None, 8) == (8, 64)
    assert messages.sizes_of("1K", "3K", "1K", 8) == (1024, 2048, 3072)
    assert messages.sizes_of("32M", None, None, 8) == (32 << 20,)


@pytest.mark.parametrize("module", [modes, earlier, messages])
def test_examples(module: Any) -> None:
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0
