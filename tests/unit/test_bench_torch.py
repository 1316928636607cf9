"""The table of ``hpcoll bench-torch``, and what its command refuses; without PyTorch."""

import sys

import pytest

from hpcoll.base.busy import CoreUse
from hpcoll.cli import main
from hpcoll.cli.bench_torch.report import ASYNC, BLOCKING, GLOO, HPCOLL, TorchResult, report


def result(operation: str, size: int, *us: float, nwrong: int = 0) -> TorchResult:
    """``us``: hpcoll's and gloo's, blocking and then in flight."""
    return TorchResult(
        operation,
        size,
        dict(zip(((b, m) for m in (BLOCKING, ASYNC) for b in (HPCOLL, GLOO)), us, strict=True)),
        nwrong,
    )


RESULTS = (
    result("all_reduce", 1 << 10, 10.0, 40.0, 20.0, 40.0),
    result("all_reduce", 1 << 20, 100.0, 100.0, 100.0, 200.0),
    result("broadcast", 1 << 10, 10.0, 5.0, 10.0, 30.0, nwrong=3),
)


def test_ratio() -> None:
    assert [one.ratio(BLOCKING) for one in RESULTS] == [4.0, 1.0, 0.5]
    assert [one.ratio(ASYNC) for one in RESULTS] == [2.0, 2.0, 3.0]


def test_report() -> None:
    lines = report(RESULTS, 2, "2.15.0")
    assert lines[0] == "# torch 2.15.0, 2 ranks"
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert rows[0][:2] == ["operation", "size"]
    assert rows[1] == "all_reduce 1 KiB 10.0 40.0 20.0 40.0 4.00 2.00".split()
    assert [row[0] for row in rows[1:]] == "all_reduce all_reduce broadcast all_reduce broadcast all".split()
    assert rows[4] == "all_reduce mean 2.00 2.00".split()
    assert rows[6] == "all mean 1.26 2.29".split()
    assert (
        lines[-1]
        == "# least ratio: blocking 0.50 (broadcast, 1 KiB), async 2.00 (all_reduce, 1 KiB); wrong elements: 3"
    )


def test_what_others_disturbed_is_marked() -> None:
    busy = RESULTS[0]._replace(beside=CoreUse(1.0, 2, 2, 0.9, 0.3, 0.0))
    lines = report([busy, RESULTS[1]], 2, "2.15.0", ["a note"])
    assert [line.endswith(" *") for line in lines if line.startswith("all_reduce")] == [True, False, False]
    assert "# a note" in lines
    assert (
        lines[-1]
        == "# * other programs used 0.9 of 2 cores while this was measured: its times and ratios say little"
    )


def test_report_of_one_rank() -> None:
    assert report(RESULTS[:1], 1, "2.15.0")[0] == "# torch 2.15.0, 1 rank"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["scan"], "operations must be one of all_reduce"),
        ("all_reduce -n 0".split(), "iters must be from 1 to 10000000, got 0"),
        ("-b 2K -e 1K".split(), "maxbytes"),
    ],
)
def test_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench-torch", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_needs_torch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["bench-torch"]) == 2
    assert "pip install 'hpcoll[torch]'" in capsys.readouterr().err
