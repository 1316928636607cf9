"""The programs in examples/ give the serial result on any number of ranks, notice when they do not, and draw who does what when."""

import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest
from mpi4py import MPI
from reference import ensure, ensure_none, unless
from spoiled import missing, spoiled

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
    "pencil_fft": "--shape 7 6 9".split(),
    "fully_sharded": "--batch 31 --steps 3".split(),
}
DRAWN = [name for name in SHORT if name != "pencil_fft"]


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


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("operators", spoiled("Allreduce", 1e-9)),
        ("tensor_parallel", spoiled("Allreduce", 1e-9)),
        ("mixture_of_experts", spoiled("Alltoallv", 1e-9)),
        ("pencil_fft", spoiled("Alltoallw", 1e-9)),
        ("fully_sharded", spoiled("Allgatherv", 1e-9)),
        ("fully_sharded", missing("Reduce_scatter")),
    ],
)
def test_wrong(
    name: str,
    broken: AbstractContextManager[None],
    example: Callable[[str], ModuleType],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every rank ends with status 1: a result is off in the tenth digit on the last rank, or a collective moves nothing."""
    with broken:
        told_wrong(example(name), name, capsys)


@pytest.mark.mpi(min_size=2)
def test_a_wrong_message(
    example: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a stage receives is changed in its seventh digit."""
    module = example("pipeline_parallel")
    receive = module.Stage.receive
    monkeypatch.setattr(module.Stage, "receive", lambda self, *given: 1.0000001 * receive(self, *given))
    told_wrong(module, "pipeline_parallel", capsys)


def told_wrong(module: ModuleType, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = module.main(SHORT[name])
    text = capsys.readouterr().out
    ensure(status == 1 and (WRONG in text) == (RANK == 0) and RIGHT not in text, (status, text))


@pytest.mark.parametrize("name", DRAWN)
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


@pytest.mark.mpi(min_size=2)
def test_restart(
    example: Callable[[str], ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All ranks begin, all but the last go on, and then all; a plate that is changed meanwhile is told."""
    file = MPI.COMM_WORLD.bcast(tmp_path) / "plate.npy"
    module = example("restart")
    run = [str(file), "--steps", "3"]
    status = module.main(run)
    fewer = MPI.COMM_WORLD.Split(RANK == NRANKS - 1, RANK)
    if RANK < NRANKS - 1:
        status += module.main(run, fewer)
    MPI.COMM_WORLD.Barrier()
    status += module.main(run)
    out = capsys.readouterr().out
    counts = [line.split(",")[0] for line in out.splitlines() if "steps" in line]
    ensure(status == 0 and counts == ["3 steps", "6 steps", "9 steps"] * (RANK == 0), (status, out))
    fewer.Free()
    MPI.COMM_WORLD.Barrier()
    if RANK == 0:
        plate = np.load(file)
        plate[30, 20] += 1e-9
        np.save(file, plate)
    MPI.COMM_WORLD.Barrier()
    ensure(module.main(run) == 1, "changed")


def test_transfers_of_another_package(
    example: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    """Where mpi4py-fft is missing, rank 0 says so."""
    status = example("fft_transfers").main("--shape 9 7 10".split())
    out, errors = capsys.readouterr()
    if importlib.util.find_spec("mpi4py_fft"):
        ensure(status == 0 and (RIGHT in out) == (RANK == 0), (status, out))
    else:
        ensure(
            status == 2 and ("needs mpi4py-fft (pip install mpi4py-fft)" in errors) == (RANK == 0),
            (status, errors),
        )


ORDERS = [  # six micro-batches on a stage that is followed by 0, 1, ... others
    "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5",
    "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5",
    "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5",
    "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5",
    "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5",
]
