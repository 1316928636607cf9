"""The example programs in jobs/ are right on any number of ranks, with hpcoll and without it, and notice when they are wrong."""

import importlib.util
import re
import runpy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from mpi4py import MPI
from reference import ensure

Capture = pytest.CaptureFixture[str]

pytestmark = [pytest.mark.mpi, pytest.mark.once]

JOBS = Path(__file__).parents[2] / "jobs"
NRANKS, RANK = MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank
RIGHT, WRONG = "parallel equals serial: yes", "parallel equals serial: NO"
SHAPES = {
    "conjugate_gradient": ((17, 13), (5, 2), (4 * NRANKS, 4 * NRANKS)),
    "fft2d": ((23, 17), (7, 40), (5, 5), (6 * NRANKS, 10 * NRANKS)),
}


def example(name: str) -> ModuleType:
    """An example as a module, of which tests may change parts."""
    spec = importlib.util.spec_from_file_location(name, JOBS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arguments(shape: tuple[int, int], *others: str) -> list[str]:
    return ["--shape", *map(str, shape), *others]


@pytest.mark.parametrize("plain", [False, True], ids=["hpcoll", "mpi4py"])
@pytest.mark.parametrize(("name", "shape"), [(name, shape) for name in SHAPES for shape in SHAPES[name]])
def test_right(name: str, shape: tuple[int, int], plain: bool, capsys: Capture) -> None:
    """Rank 0 says how it went, and what hpcoll did for it."""
    status = example(name).main(arguments(shape, *["--plain"] * plain))
    text = capsys.readouterr().out
    found = (status, RIGHT in text, WRONG in text, "us/call" in text)
    ensure(found == (0, RANK == 0, False, RANK == 0 and not plain), (found, text))


@pytest.mark.parametrize("name", SHAPES)
def test_compared(name: str, capsys: Capture) -> None:
    """Both libraries get a line with two times."""
    status = example(name).main(arguments((17, 13), "--compare", "2"))
    lines = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines() if " ms " in line)
    times = [
        float(word) for line in lines.values() for word in line.split() if word.replace(".", "").isdigit()
    ]
    good = (
        list(lines) == ["mpi4py", "hpcoll"] * (RANK == 0)
        and len(times) == 4 * (RANK == 0)
        and all(time >= 0 for time in times)
    )
    ensure(status == 0 and good, (status, lines))


@pytest.mark.parametrize("algorithm", ["", "ring", "native"])
def test_exact_solution(algorithm: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """The bits of one rank, whatever the number of ranks and the algorithm."""
    if algorithm:
        monkeypatch.setenv("HPCOLL_ALLREDUCE", algorithm)
    status = example("conjugate_gradient").main(arguments((17, 13), "--exact"))
    text = capsys.readouterr().out
    prints = set(re.findall(r"\b[0-9a-f]{16}\b", text))
    ensure(status == 0 and len(prints) == (RANK == 0), (status, text))


def test_exact_training(capsys: Capture) -> None:
    """The bits of a serial run, in batches of eight micro-batches, and a last one with fewer, the last of them smaller."""
    pytest.importorskip("sklearn")
    status = example("train_digits").main("--exact --epochs 1 --hidden 9 --batch 61".split())
    text = capsys.readouterr().out
    ensure(status == 0 and ("exact sums: yes" in text) == (RANK == 0), (status, text))


def test_heat(tmp_path: Path, capsys: Capture) -> None:
    """Each way of exchange gives the bits of the serial run, and has a line with two times; the field is drawn."""
    shape, picture = (NRANKS + 1, NRANKS, 2 * NRANKS + 3), tmp_path / "heat.svg"
    status = example("heat3d").main(
        ["--shape", *map(str, shape), "--steps", "5", "--times", "2", "--plot", str(picture)]
    )
    text = capsys.readouterr().out
    rows = re.findall(r"^(\S.*?\S) {2,}(\d+\.\d+) +(\d+\.\d+)$", text, re.M)
    ways = [] if RANK else ["Isend and Irecv", "Neighbor_alltoallw", "hpcoll.Halo", "hpcoll.Halo, overlapped"]
    good = [name for name, *_ in rows] == ways and (RIGHT in text) == picture.exists() == (RANK == 0)
    ensure(status == 0 and good, (status, text))


def test_heat_that_stays(capsys: Capture) -> None:
    """One way does not exchange: it is named, and every rank ends with status 1."""
    module = example("heat3d")
    module.Messages.exchange = lambda self: None
    status = module.main(["--shape", *[str(NRANKS + 4)] * 3, "--steps", "3", "--times", "1"])
    text = capsys.readouterr().out
    ensure(status == 1 and (f"{WRONG}, by Isend and Irecv\n" in text) == (RANK == 0), (status, text))


def without_exchange(module: Any) -> None:
    """Blocks that do not know each other: wrong on more than one rank."""
    module.Grid.exchange = lambda self, padded: None


def other_operator(module: Any) -> None:
    """Another equation, on all ranks and on one: only the analytic solution tells."""
    operator = module.operator
    module.operator = lambda *given: 1.01 * operator(*given)


def one_element(module: Any) -> None:
    """Change one element of the last rank in its tenth digit."""
    transposed = module.Transform.transposed

    def spoiled(self: Any, matrix: Any, axis: int) -> Any:
        result = transposed(self, matrix, axis)
        result[0, 0] *= 1 + 1e-9 * (self.comm.rank == NRANKS - 1)
        return result

    module.Transform.transposed = spoiled


def reversed_columns(module: Any) -> None:
    """The matrix is turned and mirrored, not transposed."""
    transposed = module.Transform.transposed
    module.Transform.transposed = lambda self, matrix, axis: transposed(self, matrix, axis)[::-1]


BROKEN = [
    ("conjugate_gradient", without_exchange),
    ("conjugate_gradient", other_operator),
    ("fft2d", one_element),
    ("fft2d", reversed_columns),
]


@pytest.mark.parametrize(("name", "broken"), BROKEN)
def test_wrong(name: str, broken: Any, capsys: Capture) -> None:
    """Every rank ends with status 1."""
    if broken is without_exchange and NRANKS == 1:
        pytest.skip("one block has no neighbours")
    module = example(name)
    broken(module)
    status = module.main(arguments((17, 13)))
    text = capsys.readouterr().out
    ensure(status == 1 and (WRONG in text) == (RANK == 0) and RIGHT not in text, (status, text))


@pytest.mark.parametrize(("name", "shape"), [("conjugate_gradient", (NRANKS, 0)), ("fft2d", (23, 4))])
def test_refused(name: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """As a script; a grid with less than a point per rank, and one too coarse for the waves: on every rank, before any message."""
    monkeypatch.setattr("sys.argv", [name, *arguments(shape)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(JOBS / f"{name}.py"), run_name="__main__")
    assert ended.value.code == 2
    assert "--shape" in capsys.readouterr().err
