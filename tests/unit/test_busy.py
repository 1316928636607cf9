"""Cores that other programs use: from recorded numbers, and from files as Linux writes them."""

import math
from operator import add
from pathlib import Path

import pytest

from hpcoll.base.busy import CoreUse, Usage, core_use, ncores_of, usage, verdict

Samples = tuple[list[Usage], list[Usage]]


def passed(
    used: float, own: list[float], waited: float = 0.0, stopped: float = 0.0, seconds: float = 1.0
) -> Samples:
    """The samples of a job's processes, between which all cores together were used for some seconds, and each process for some."""
    before = [Usage(100.0 + i, 5000.0, 70.0 * i, 3.0, 0.5) for i in range(len(own))]
    between = [Usage(seconds, used, mine, waited, stopped) for mine in own]
    return before, [Usage(*map(add, *pair)) for pair in zip(before, between, strict=True)]


@pytest.mark.parametrize(
    ("ncores", "samples", "others", "disturbed"),
    [
        (2, passed(2.0, [0.998, 0.999]), 0.003, False),  # two ranks spin on two cores
        (2, passed(1.99, [0.93, 0.97], waited=0.01), 0.09, False),  # beside a machine's own programs
        (2, passed(2.0, [0.66, 0.67], waited=0.34), 0.67, True),  # beside another program
        # four ranks on two cores: nobody else is there
        (
            2,
            passed(2.0, [0.497, 0.503, 0.499, 0.498], waited=0.5),
            0.003,
            False,
        ),
        (2, passed(2.0, [0.4, 0.4, 0.4, 0.4], waited=0.6), 0.4, True),
        (2, passed(2.0, [0.5, 0.98], waited=0.5), 0.52, True),  # another on the core of one rank
        (8, passed(4.0, [1.0, 1.0]), 2.0, False),  # others have cores of their own
        (8, passed(4.0, [0.9, 1.0], waited=0.1), 2.1, True),  # but for a while
        (8, passed(8.0, [0.9, 0.9]), 6.2, True),
        (128, passed(127.9, [0.995] * 128), 0.54, False),  # what the system's own programs use adds up
        (2, passed(0.02, [0.0, 0.0], seconds=0.02), 1.0, False),  # too short for ticks
        (2, passed(20.0, [9.0, 9.9], seconds=10.0), 0.11, False),
        (2, passed(20.0, [8.5, 9.9], seconds=10.0), 0.16, True),
        (4, passed(1.0, [0.5, 0.5], stopped=0.4), 0.0, True),  # a quota
        (2, passed(1.9, [1.0, 1.0]), 0.0, False),  # ticks are coarse
        (2, passed(math.nan, [0.6, 0.6], waited=0.4), math.nan, False),  # Linux does not tell
    ],
)
def test_recorded_numbers(ncores: int, samples: Samples, others: float, disturbed: bool) -> None:
    found = core_use(*samples, ncores)
    assert found.others == pytest.approx(others, abs=0.01, nan_ok=True)
    assert found.disturbed is disturbed
    assert bool(verdict([found])) is disturbed


def test_what_is_said() -> None:
    little, much = (CoreUse(1.0, 2, 2, others, 0.3, 0.0) for others in (0.3, 1.04))
    assert verdict([little, much, CoreUse(1.0, 2, 2, 0.0, 0.0, 0.0)]) == [
        "* other programs used 1.0 of 2 cores while this was measured: its times and ratios say little"
    ]
    assert (
        str(CoreUse(1.0, 2, 2, 0.0, 0.0, 0.25))
        == "a quota of a control group stopped ranks for 25 % of the time"
    )


@pytest.mark.parametrize(
    ("membership", "stat"),
    [("0::/job", "g/job/cpu.stat"), ("4:cpu,cpuacct:/job\n5:memory:/other", "g/cpu/job/cpu.stat")],
)
def test_files(tmp_path: Path, membership: str, stat: str) -> None:
    """Interrupts are left out, time that another machine has stolen is not; a quota stops in either version of control groups."""
    texts = {
        "p/stat": "cpu 9 9 9 9 9 9 9 9 0 0\ncpu0 100 10 20 7000 50 900 900 5 3 0\ncpu1 1 1 1 1 1 1 1 1 0 0\ncpu10 2 2 2 9 9 9 9 2 0 0\n",
        "p/thread-self/schedstat": "123 2500000000 7\n",
        "member": membership,
        stat: "nr_throttled 3\nthrottled_usec 1500000\n"
        if stat == "g/job/cpu.stat"
        else "nr_throttled 3\nthrottled_time 1500000000\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    places = tmp_path / "p", tmp_path / "g", tmp_path / "member"
    found = usage(frozenset({0, 10}), *places)
    assert (found.used, found.waited, found.stopped) == pytest.approx((1.43, 2.5, 1.5))
    assert math.isnan(usage(frozenset({0, 7}), *places).used)
    nothing = usage(frozenset({0}), tmp_path, tmp_path, tmp_path)
    assert (math.isnan(nothing.used), nothing.waited, nothing.stopped) == (True, 0.0, 0.0)


def test_threads_of_a_core_count_as_one(tmp_path: Path) -> None:
    for core in range(4):
        (tmp_path / f"cpu{core}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{core}/topology/thread_siblings_list").write_text(f"{core % 2},{core % 2 + 2}\n")
    assert ncores_of(frozenset({0, 1, 2}), tmp_path) == 2
    assert ncores_of(frozenset({0, 1, 2}), tmp_path / "nothing") == 3
