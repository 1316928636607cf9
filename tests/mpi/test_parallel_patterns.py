"""The programs in examples/ give the serial result on any number of ranks, notice when they do not, and draw who does what when."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from mpi4py import MPI
from reference import ensure, ensure_none, unless

import hpcoll

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.once,
    # whose import takes seconds
    pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="needs scikit-learn"),
]

EXAMPLES = Path(__file__).parents[2] / "examples"
NRANKS, RANK = MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank
RIGHT, WRONG = "parallel equals serial: yes", "parallel equals serial: NO"
SVG = "{http://www.w3.org/2000/svg}"
SHORT = {  # uneven on 2, 3 and 4 ranks
    "operators": ["--queries", "3"],
    "tensor_parallel": "--hidden 13 --batch 11 --steps 3".split(),
    "pipeline_parallel": "--layers 7 --batch 50 --micro 6 --steps 2".split(),
    "mixture_of_experts": ["--experts", "7"],
    "fully_sharded": "--batch 31 --steps 3".split(),
}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Examples as modules, whose parts tests may change."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


@pytest.mark.parametrize("name", SHORT)
def test_right(name: str, example: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]) -> None:
    """And the ledger, with the messages that are counted, agrees with the formula."""
    status = example(name).main(SHORT[name])
    text = capsys.readouterr().out
    ensure(status == 0 and (RIGHT in text) == (RANK == 0) and WRONG not in text, (status, text))


def test_fewer_micro_batches_than_stages(example: Callable[[str], ModuleType]) -> None:
    status = example("pipeline_parallel").main("--layers 7 --batch 9 --micro 1 --steps 1".split())
    ensure_none([status] if status else [])


def off(name: str) -> Callable[[Any, Any], None]:
    """The last rank's result of a collective is off in the tenth digit."""

    def breaks(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        method = getattr(hpcoll.Communicator, name)

        def spoiled(self: Any, send: Any, receive: Any, *others: Any, **named: Any) -> None:
            method(self, send, receive, *others, **named)
            array = receive[0] if isinstance(receive, list) else receive
            if self.size == NRANKS and RANK == NRANKS - 1 and array.dtype == np.float64:
                array.flat[0] += 1e-9

        monkeypatch.setattr(hpcoll.Communicator, name, spoiled)

    return breaks


def missing(name: str) -> Callable[[Any, Any], None]:
    """A collective that moves nothing."""

    def breaks(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        method = getattr(hpcoll.Communicator, name)

        def nothing(self: Any, send: Any, receive: Any, *others: Any, **named: Any) -> None:
            if self.size != NRANKS:
                method(self, send, receive, *others, **named)
            elif not isinstance(receive, list):
                receive[...] = send if send is not MPI.IN_PLACE and send.shape == receive.shape else receive

        monkeypatch.setattr(hpcoll.Communicator, name, nothing)

    return breaks


def off_message(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change what a stage receives in its seventh digit."""
    receive = module.Stage.receive
    monkeypatch.setattr(module.Stage, "receive", lambda self, *given: 1.0000001 * receive(self, *given))


BROKEN = [
    ("operators", off("Allreduce")),
    ("tensor_parallel", off("Allreduce")),
    ("pipeline_parallel", off_message),
    ("mixture_of_experts", off("Alltoallv")),
    ("fully_sharded", off("Allgatherv")),
    ("fully_sharded", missing("Reduce_scatter")),
]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("name", "broken"), BROKEN)
def test_wrong(
    name: str,
    broken: Callable[[Any, Any], None],
    example: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every rank ends with status 1."""
    module = example(name)
    broken(module, monkeypatch)
    status = module.main(SHORT[name])
    text = capsys.readouterr().out
    ensure(status == 1 and (WRONG in text) == (RANK == 0) and RIGHT not in text, (status, text))


@pytest.mark.parametrize("name", SHORT)
def test_picture(name: str, example: Callable[[str], ModuleType], tmp_path: Path) -> None:
    """One row per rank, a time axis; in the pipeline's, 1F1B's order, an arrow for each message, and a legend of what there is."""
    file = tmp_path / "picture.svg"
    status, wrong = example(name).main([*SHORT[name], "--plot", str(file)]), []
    if RANK == 0:
        picture = ElementTree.parse(file).getroot()
        rows = [row for row in picture.iter(f"{SVG}g") if row.get("class") == "rank"]
        boxes = [[(title.text or "").split(",")[0] for title in row.iter(f"{SVG}title")] for row in rows]
        if status or len(rows) != NRANKS or not all(boxes):
            wrong.append((status, boxes))
        lines = [line.get("class") for line in picture.iter(f"{SVG}line")]
        texts = [text.text for text in picture.iter(f"{SVG}text")]
        wrong += unless(lines.count("tick") > 2 and "0 ms" in texts, texts)
        if name == "pipeline_parallel":
            found = [" ".join(box for box in row if box[0] in "FB") for row in boxes]
            wrong += unless(found == [ORDERS[NRANKS - rank - 1] for rank in range(NRANKS)], found)
            wrong += unless(lines.count(None) == 2 * 6 * (NRANKS - 1), lines)
            wrong += unless(("forward" in texts, "collective" in texts) == (True, False), texts)
    ensure_none(wrong)


ORDERS = [  # six micro-batches on a stage that is followed by 0, 1, ... others
    "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5",
    "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5",
    "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5",
    "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5",
    "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5",
]
