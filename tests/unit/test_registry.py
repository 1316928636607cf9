"""Algorithms that programs, files and packages register: what is taken and refused, their derived costs, and their proof."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpcoll
from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.cli import main
from hpcoll.formats.reading import READERS as PROGRAMS
from hpcoll.registry import sources
from hpcoll.registry.proof import proven
from hpcoll.schedules.catalogue import CATALOGUE, registered
from hpcoll.schedules.derived import derived
from hpcoll.schedules.ir import Writer, inputs, outputs
from hpcoll.schedules.row import Algorithm, schedule
from hpcoll.selection.choice import Need
from hpcoll.selection.choose import choose
from hpcoll.selection.config import Config, name_of, read_config

RING = """
import hpcoll
from hpcoll import inputs, outputs

@hpcoll.algorithm("allgather"{facts})
def {name}(w):
    left, right = (w.rank - 1) % w.nranks, (w.rank + 1) % w.nranks
    w.copy(inputs(0), outputs(w.rank))
    for t in range(w.nranks - 1):
        w.send(right, outputs((w.rank - t) % w.nranks))
        w.recv(left, outputs((w.rank - t - 1) % w.nranks))
"""


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """What a test registers is gone after it."""
    yield
    sources._origins.clear()
    for row in registered():
        del CATALOGUE[row.key]


def fan(w: Writer) -> None:
    """Everybody sends everything to everybody, who adds in rank order."""
    others = [rank for rank in range(w.nranks) if rank != w.rank]
    run = w.scratch(*[0] * len(others))
    for rank in others:
        w.send(rank, inputs(0))
    cells = {rank: run._replace(index=run.index + i, n=1) for i, rank in enumerate(others)}
    for rank in others:
        w.recv(rank, cells[rank])
    w.reduce(*(inputs(0) if rank == w.rank else cells[rank] for rank in range(w.nranks)), dst=outputs(0))


def late_fault(w: Writer) -> None:
    """Wrong on three and more ranks."""
    fan(w)
    if w.nranks > 2 and w.rank == 1:
        w.channels[0].pop()


# --- what is registered


def test_a_decorated_builder_is_a_row_like_any_other() -> None:
    row = hpcoll.algorithm("allreduce", ordered=True, source="here")(fan)
    assert isinstance(row, Algorithm)
    assert row.key == "allreduce/fan"
    assert CATALOGUE[row.key] is row
    assert "fan" in hpcoll.algorithms("allreduce")
    assert name_of(row, "allreduce") == "fan"
    with pytest.raises(ArgumentError, match="must be one of bcast's"):
        name_of(row, "bcast")
    with pytest.raises(ArgumentError, match="not registered"):
        name_of(row._replace(name="other"), "allreduce")


@pytest.mark.parametrize(
    ("collective", "facts", "why"),
    [
        ("allsum", {}, "collective must be one of"),
        ("allreduce", {"name": "ring"}, "allreduce/ring exists already"),
        ("allreduce", {"name": "native"}, "name of an algorithm"),
        ("allreduce", {"name": "a/b"}, "name of an algorithm"),
        ("allreduce", {"speed": 3}, "must be one of canonical, .* got 'speed'"),
        ("allreduce", {"ordered": 1}, "ordered must be of type bool"),
        ("allreduce", {"serves": (0,)}, "parts and serves"),
        ("allreduce", {"chunks": "p+"}, "chunks is not a formula of p"),
        ("allreduce", {"chunks": "p-2"}, "chunks must not be below 1"),
        ("allreduce", {"rounds": "open('x')"}, "rounds is not a formula of p"),
    ],
)
def test_wrong_facts_are_refused(collective: str, facts: dict[str, object], why: str) -> None:
    with pytest.raises(ArgumentError, match=why):
        hpcoll.algorithm(collective, **facts)(fan)  # type: ignore[arg-type]
    assert not registered()


# --- files and packages


def test_files_are_read_once_and_their_rows_are_settings(tmp_path: Path) -> None:
    """Ranks compare the content of a file, wherever it lies, and the model may choose among its rows."""
    file = tmp_path / "mine.py"
    file.write_text(RING.format(name="mine", facts=""))
    config = read_config({"HPCOLL_ALGORITHMS": str(file), "HPCOLL_ALLGATHER": "mine"})
    assert [row.name for row in config.files] == ["mine"]
    assert config.registered == config.files
    assert (
        config.agreement()["algorithm allgather/mine"]
        == f"mine.py with content {sources._digest(file.read_bytes())}"
    )
    file.write_text("this is read no more")
    assert read_config({"HPCOLL_ALGORITHMS": str(file)}).files == config.files


def test_a_file_that_the_program_imports_too_is_one_algorithm(tmp_path: Path) -> None:
    """The variable names it and the program imports it; a changed function of that name is refused."""
    file = tmp_path / "mine.py"
    file.write_text(RING.format(name="mine", facts=""))
    (row,) = sources.read_file(file)
    module = {"__name__": "mine"}
    exec(compile(file.read_text(), "elsewhere/mine.py", "exec"), module)
    assert row in module.values()
    with pytest.raises(ArgumentError, match="exists already"):
        exec(compile(file.read_text().replace("range(", "range(1 * "), "elsewhere/mine.py", "exec"), {})


def test_the_suffixes_of_programs_are_those_that_are_read() -> None:
    assert set(sources.PROGRAMS) == set(PROGRAMS)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("a.py", "def f(:", r"a\.py: SyntaxError"),
        ("b.py", "import hpcoll\nraise KeyError('x')", r"b\.py: KeyError at .*b\.py:2: 'x'"),
        ("c.py", "raise SystemExit(3)", r"c\.py: SystemExit"),
        ("d.py", "x = 1", r"d\.py: registers no algorithm"),
        ("e.py", RING.format(name="twice", facts="") * 2, r"e\.py: algorithm allgather/twice exists already"),
        ("f.txt", "", r"f\.txt: expected a name that ends with \.py"),
        ("missing.py", None, r"missing\.py: cannot be read: No such file"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_it(
    tmp_path: Path, name: str, text: str | None, why: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(
        ArgumentError, match=f"^environment variable HPCOLL_ALGORITHMS: [^\n]*{why}"
    ) as caught:
        read_config({"HPCOLL_ALGORITHMS": str(tmp_path / name)})
    assert "\n" not in str(caught.value)
    assert not registered()


def test_an_installed_package_is_found_by_name_and_not_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking for packages takes time, so that only a name that nobody has registered makes hpcoll look."""
    (tmp_path / "theirs.py").write_text(RING.format(name="packaged", facts=""))
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hpcoll.algorithms]\ntheirs = theirs\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    sources.read_packages.cache_clear()
    try:
        assert not read_config({}).registered
        assert not registered()
        config = read_config({"HPCOLL_ALLGATHER": "packaged"})
        assert config.algorithms == {"allgather": "packaged"}
        assert not config.registered
    finally:
        sys.modules.pop("theirs", None)
        sources.read_packages.cache_clear()


# --- costs


@pytest.mark.parametrize("nranks", [2, 5, 8])
@pytest.mark.parametrize(
    "key",
    [
        "allreduce/ring",
        "allreduce/two_shot",
        "allreduce/rabenseifner",
        "bcast/chain",
        "reduce/direct",
        "allgather/circulant",
    ],
)
def test_derived_costs_are_those_of_the_formulas(key: str, nranks: int) -> None:
    row = CATALOGUE[key]
    found = derived(schedule, row, nranks, 1, ())
    assert (found.rounds, found.sent) == pytest.approx((row.cost("rounds", nranks), row.cost("sent", nranks)))
    assert found.received == pytest.approx(max(row.cost("received", nranks), row.cost("sent", nranks)))
    assert found.largest == pytest.approx(row.cost("largest", nranks))
    # of others the formula leaves out a wait
    if key != "allreduce/rabenseifner" or nranks & (nranks - 1) == 0:
        assert found.critical == pytest.approx(row.cost("critical", nranks))


@pytest.mark.parametrize("nchunks", [3, 16, 40, 1000])
def test_derived_costs_of_many_chunks_need_no_schedules_of_these(nchunks: int) -> None:
    row = CATALOGUE["bcast/circulant"]
    found = derived(schedule, row, 8, nchunks, ())
    assert found.critical == pytest.approx(row.cost("critical", 8, nchunks))
    assert found.sent == pytest.approx(row.cost("sent", 8, nchunks))


def test_the_model_chooses_by_derived_costs_among_rows_that_ranks_have_compared() -> None:
    """A row with a chain of no messages is the cheapest; not where ranks have not compared it, or outside of its sizes."""
    need = Need("allreduce", 16, 8)
    row = hpcoll.algorithm("allreduce", name="idle", ordered=True)(lambda w: w.copy(inputs(0), outputs(0)))
    assert choose(need, Config()).algorithm != "idle"
    assert choose(need._replace(registered=(row,)), Config()).algorithm == "idle"
    CATALOGUE[row.key] = small = row._replace(most=4)
    assert choose(need._replace(registered=(small,)), Config()).algorithm != "idle"
    assert choose(need, Config(), "idle").algorithm == "idle"


def test_rows_for_some_numbers_of_ranks_serve_no_others() -> None:
    row = hpcoll.algorithm("allreduce", serves=(4,))(fan)
    with pytest.raises(ArgumentError, match="allreduce/fan cannot serve this call: it is for 4 ranks"):
        choose(Need("allreduce", 3, 8), Config(), "fan")
    assert choose(Need("allreduce", 3, 8, registered=(row,)), Config()).algorithm != "fan"
    with pytest.raises(ScheduleError, match="cannot run on 3 ranks"):
        schedule(row, 3, 0)


# --- proofs


def test_a_proof_is_kept_by_content(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A second process with the same schedules does not prove again; another claim or another step is another content."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    row = hpcoll.algorithm("allreduce", ordered=True)(fan)
    one = proven(row, 3)
    (kept,) = tmp_path.glob(f"*/proof-{one}")
    before = kept.stat()
    proven.cache_clear()
    assert proven(row, 3) == one
    assert kept.stat() == before
    assert proven(row, 4) != one != proven(row._replace(ordered=False), 3)


def test_a_wrong_row_is_refused_with_rank_and_step() -> None:
    row = hpcoll.algorithm("allreduce", name="late")(late_fault)
    proven(row, 2)
    with pytest.raises(
        ScheduleError, match="allreduce/late is refused on 3 ranks before any message leaves: rank 1: output"
    ) as caught:
        proven(row, 3)
    assert caught.value.rank == 1


def test_an_exception_of_a_builder_is_a_refusal_with_its_place() -> None:
    row = hpcoll.algorithm("allreduce", name="raises")(lambda w: w.send(int(None), inputs(0)))  # type: ignore[call-overload]
    with pytest.raises(
        ScheduleError, match=r"rank 0: .*its builder raised TypeError at .*test_registry\.py:\d+: int()"
    ):
        proven(row, 2)


# --- the command line


def test_commands_find_algorithms_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(RING.format(name="shown", facts=', summary="mine"'))
    assert main(f"verify {file} --max-nranks 5".split()) == 0
    assert "1 algorithms on 1 to 5 ranks" in capsys.readouterr().out
    monkeypatch.setenv("HPCOLL_ALGORITHMS", str(file))
    assert main(["show", "allgather"]) == 0
    assert "allgather/shown" in capsys.readouterr().out
    assert main("show allgather/shown -n 3".split()) == 0
    assert "longest chain of messages 2" in capsys.readouterr().out
    assert main("simulate allgather -n 4 --algorithms shown --bytes 64K".split()) == 0
    capsys.readouterr()
    file = tmp_path / "wrong.py"
    file.write_text(RING.format(name="wrong", facts="").replace("w.copy", "w.nranks > 2 or w.copy"))
    assert main(["verify", str(file)]) == 1
    assert re.match("refused: .*rank 0", capsys.readouterr().out)
