"""The ledger: lines by operation, algorithm, element type and reason, what the log says of them, and a table that fits a screen."""

import logging

import pytest

from hpcoll.comm.plans.ledger import Ledger, LedgerRow
from hpcoll.schedules.catalogue import CATALOGUE

WHY = "long double elements"


def test_lines_are_told_apart() -> None:
    ledger = Ledger()
    ledger.account("bcast", "ring", "float64").note(8, 3000)
    ledger.account("bcast", "ring", "int32").note(4, 2000)
    ledger.account("bcast", "ring", "float64").note(16, 4000)
    ledger.account("bcast", "ring", "float64").note(32)
    ledger.account("bcast", "native", "float64", "algorithm='native'").note(8, 1000)
    ledger.account("bcast", "chain", "float64")  # planned and never run
    ledger.account("bcast", "ring", "float64").ways.update(["shm", "mpi"])
    assert ledger.rows() == [
        LedgerRow("bcast", "ring", 3, 56, pytest.approx(7e-6), "float64", "", "mpi+shm", 2),
        LedgerRow("bcast", "ring", 1, 4, pytest.approx(2e-6), "int32", "", "", 1),
        LedgerRow("bcast", "native", 1, 8, pytest.approx(1e-6), "float64", "algorithm='native'", "", 1),
    ]


def test_the_table() -> None:
    """It names everything, in fewer than 140 columns, also where all that is in it is long."""
    ledger, longest = Ledger(), max((row.name for row in CATALOGUE.values()), key=len)
    ledger.account("reduce_scatter", longest, "a type with a name that is long").note(1 << 40, 10**14)
    ledger.account("allreduce", "native", "complex256", "in flight before a blocking call").note(0)
    ledger.account("allreduce", "ring", "float32").ways.update("direct host ipc mpi shm staged".split())
    ledger.account("allreduce", "ring", "float32").note(4)
    head, *lines = str(ledger).splitlines()
    assert head.split()[:8] == "operation algorithm calls timed bytes seconds us/call element".split()
    assert all(len(line) < 140 for line in lines)
    assert [line.split()[1] for line in lines] == [longest, "native", "ring"]
    assert lines[0].endswith("  a type with a")  # cut
    assert [line[head.index("timed") :].split()[0] for line in lines] == ["1", "0", "0"]
    assert [line[77:86].strip() for line in lines[1:]] == ["-", "-"]  # their calls have no time
    assert ledger.rows()[0].element == "a type with a name that is long"
    assert lines[1].endswith("complex256     in flight before a blocking call")
    assert lines[2].endswith("float32        direct+host+ipc+mpi+shm+staged")


def test_times_say_of_how_many_calls_they_are() -> None:
    """Where all calls have a time, their number says it."""
    ledger = Ledger()
    account = ledger.account("allreduce", "ring", "float64")
    account.note(8, 3000)
    assert str(ledger).splitlines()[1].split() == "allreduce ring 1 8 B 0.000 3.0 float64".split()
    for _ in range(900):
        account.note(8)
    head, line = str(ledger).splitlines()
    assert head.split()[2:6] == "calls timed bytes seconds".split()
    assert line.split() == "allreduce ring 901 1 7.04 KiB 0.000 3.0 float64".split()


def test_the_log_says_once_what_goes_to_the_library(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger()
    with caplog.at_level(logging.INFO, "hpcoll"):
        for rank in (1, 0, 0):
            ledger.library("allreduce", "complex256", WHY, rank).note(0)
        # another rank has counted it first, and all of them are in one ledger here only
        assert caplog.messages == []
        for _ in range(2):
            ledger.library("allreduce", "float128", WHY, 0).note(0)
        ledger.library("barrier", "", WHY, 0).note(0)
    assert caplog.messages == [f"allreduce of float128: native ({WHY})", f"barrier: native ({WHY})"]
