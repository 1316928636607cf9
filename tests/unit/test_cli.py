"""The command line: what it prints, its exit codes, and that errors are one line."""

import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from slowness import slowed

import hpcoll
from hpcoll.base.errors import HpcollError
from hpcoll.base.text import table
from hpcoll.cli import COMMANDS, Command, _parser, main
from hpcoll.cli.simulate.predict import compiled_loop
from hpcoll.schedules.catalogue import CATALOGUE

Capture = pytest.CaptureFixture[str]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


@pytest.mark.parametrize("columns", ["40", "100", "180"])
def test_show_lists_the_catalogue(columns: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= int(columns)
    assert [line.split()[0] for line in lines if line.partition(" ")[0] in CATALOGUE] == [*CATALOGUE]


def test_show_lists_one_collective(capsys: Capture) -> None:
    assert main(["show", "alltoall"]) == 0
    out = capsys.readouterr().out
    assert "alltoall/bruck" in out
    assert "allreduce/ring" not in out


def test_show_draws_an_algorithm(capsys: Capture) -> None:
    assert main("show bcast/binomial -n 4 --root 1".split()) == 0
    out = capsys.readouterr().out
    assert out.startswith("bcast/binomial on 4 ranks, 1 chunk, 1 channel, root 1\n")
    assert "tree, sent from rank 1" in out


def test_show_draws_an_algorithm_on_nodes(capsys: Capture) -> None:
    drawn = []
    for more in ([], ["--ranks-per-node", "4"], ["--ranks-per-node", "4:cyclic"]):
        assert main(["show", "allreduce/hierarchical", "-n", "8", *more]) == 0
        drawn.append(capsys.readouterr().out)
    assert drawn[0] == drawn[1] != drawn[2]
    rounds = [line for line in drawn[1].splitlines() if line.startswith("  0 ")]
    assert ">4" in rounds[0], "the ranks of its stripe are 0 and 4"
    assert all(line.startswith("allreduce/hierarchical on 8 ranks, 8 chunks, 1 channel\n") for line in drawn)


def test_show_draws_an_exchange_on_a_grid(tmp_path: Path, capsys: Capture) -> None:
    """Its dimensions give the number of ranks. The legend says of blocks what they are there."""
    what = "show neighbor_alltoall/direct --grid 3x2".split()
    assert main(what) == main([*what, "-n", "6", "--periodic"]) == main(what[:2]) == 0
    out = capsys.readouterr().out
    titles = [line for line in out.splitlines() if line.startswith("neighbor_alltoall/direct on")]
    where = (
        ("6 ranks, 4 chunks", "grid 3x2"),
        ("6 ranks, 4 chunks", "periodic grid 3x2"),
        ("8 ranks, 2 chunks", "ring"),
    )
    assert titles == [f"neighbor_alltoall/direct on {size}, 1 channel, {graph}" for size, graph in where]
    open_one, periodic = out.split("neighbor_alltoall/direct on")[1:3]
    assert "0→4" not in open_one.replace("↔", "→")
    assert ">4 c0.0" in periodic
    assert out.count("c0.1: block 1 of rank 0") == 3
    assert main(f"show neighbor_alltoall/hierarchical --grid 2x2x2 --svg {tmp_path}/cube.svg".split()) == 0
    assert "neighbor_alltoall/hierarchical on 8 ranks, grid 2x2x2" in (tmp_path / "cube.svg").read_text()


def test_show_writes_a_picture(tmp_path: Path, capsys: Capture) -> None:
    assert main(f"show allreduce/ring -n 3 --svg {tmp_path}/ring.svg".split()) == 0
    assert ElementTree.parse(tmp_path / "ring.svg").getroot().tag.endswith("svg")
    assert capsys.readouterr().out == ""


REDISTRIBUTE = "show redistribute --shape 12x10 -n 4 --from split=0,sizes=[0,6,5,1] --to".split()


def test_show_draws_a_redistribution(capsys: Capture) -> None:
    """Who sends which boxes, and keeps which; of blocks in turns the first ones are written out."""
    assert main([*REDISTRIBUTE, "grid=(2, 2)"]) == 0
    title, *rows = capsys.readouterr().out.splitlines()
    assert title.endswith(" to Distribution((12, 10), 4, grid=(2, 2))")
    assert [line.split(maxsplit=2)[2] for line in rows] == [
        "→ 0          30 elements  [0:6, 0:5]",
        "keeps        30 elements  [0:6, 5:10]",
        "keeps        25 elements  [6:11, 0:5]",
        "→ 3          25 elements  [6:11, 5:10]",
        "→ 2           5 elements  [11:12, 0:5]",
        "keeps         5 elements  [11:12, 5:10]",
    ]
    assert main([*REDISTRIBUTE, "split=1, block=1"]) == 0
    out = capsys.readouterr().out
    assert "rank 1 → 0          18 elements  [0:6, 0:1] [0:6, 4:5] [0:6, 8:9]\n" in out
    assert main("show redistribute -n 2 --from block=1,split=1 --to=".split()) == 0
    assert "[0:1000, 0:1] [0:1000, 2:3] [0:1000, 4:5] and 397 more" in capsys.readouterr().out


def test_show_writes_a_picture_of_a_redistribution(tmp_path: Path) -> None:
    """Each rank on both sides, an arrow for each pair, and the boxes."""
    assert main([*REDISTRIBUTE, "grid=(2, 2)", "--svg", f"{tmp_path}/boxes.svg"]) == 0
    root = ElementTree.parse(tmp_path / "boxes.svg").getroot()
    count = {tag: len(root.findall(f"{{*}}{tag}")) for tag in ("circle", "line", "polygon")}
    assert count == {"circle": 8, "line": 3, "polygon": 3}
    texts = [text.text or "" for text in root.findall("{*}text")]
    assert sum("[11:12, 5:10]" in text for text in texts) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            "show redistribute --from split=0 --to split=2 -n 4".split(),
            "--to: Distribution needs an axis of 2 to split, got 2",
        ),
        (
            "show redistribute --from split=0".split(),
            "--to needs arguments of a Distribution, such as split=0, got None",
        ),
        ("show redistribute --from splat=0 --to split=1".split(), "--from needs arguments of a Distribution"),
        ("show redistribute --from (0) --to split=1".split(), "--from needs arguments of a Distribution"),
        (
            "show redistribute --shape 3x? --from split=0 --to split=1".split(),
            "--shape needs numbers such as 1000x800, got '3x?'",
        ),
        (
            "show redistribute --from split=0 --to split=1 -n 65".split(),
            "show redistribute needs 1 to 64 ranks, got 65",
        ),
        (["show", "allsum"], "collective must be one of"),
        (["show", "allreduce/rings"], "allreduce algorithm must be one of ring"),
        ("show allreduce -n 4".split(), "show needs COLLECTIVE/ALGORITHM to draw, got 'allreduce'"),
        ("show allreduce/ring -n 0".split(), "needs 1 to 1024 ranks"),
        (
            "show allreduce/ring --chunks 2".split(),
            "allreduce/ring chooses its number of chunks itself, got --chunks 2",
        ),
        (
            "show allreduce/ring --ranks-per-node 2".split(),
            "allreduce/ring does not look at nodes, got --ranks-per-node '2'",
        ),
        (
            "show allreduce --ranks-per-node 2".split(),
            "show needs COLLECTIVE/ALGORITHM to draw, got 'allreduce'",
        ),
        (
            "show neighbor_alltoall/direct -n 8 --grid 3x2".split(),
            "grid '3x2' has 6 ranks, expected 8",
        ),
        (
            "show neighbor_alltoall/direct --grid 3xx2".split(),
            "grid must look like 8, 4x2 or 2x2x2, got '3xx2'",
        ),
        (
            "show neighbor_alltoall/direct --periodic".split(),
            "--periodic says that a grid is periodic, and needs one, such as --grid 4x2",
        ),
        (
            "show neighbor_alltoall --grid 3x2".split(),
            "show needs COLLECTIVE/ALGORITHM to draw, got 'neighbor_alltoall'",
        ),
        ("show alltoall/direct --grid 4x2".split(), "alltoall has no neighbours, got --grid '4x2'"),
        (
            "show allreduce/hierarchical -n 4 --ranks-per-node 3+2".split(),
            "nodes '3+2' have 5 ranks together, expected 4",
        ),
        (
            "show allreduce/hierarchical --ranks-per-node some".split(),
            "nodes must look like 6, 3+1+4 or 2:cyclic, got 'some'",
        ),
        ("show bcast/hierarchical -n 0".split(), "needs 1 to 1024 ranks"),
        ("show bcast/binomial --root 8".split(), "0 <= root < nranks"),
        ("show allreduce/ring --root 2".split(), "allreduce has no root, got root 2"),
        (
            "show bcast/binomial --svg /nowhere/picture.svg".split(),
            "cannot write /nowhere/picture.svg: No such file",
        ),
    ],
)
def test_an_error_is_one_line_and_exit_code_2(arguments: list[str], text: str, capsys: Capture) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("hpcoll: error: ")
    assert captured.err.count("\n") == 1
    assert text in captured.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("show allreduce/ring -n 99999999999".split(), "needs 1 to 1024 ranks"),
        (
            "show allreduce/ring -n 1000".split(),
            "has some 3,996,000 steps with 1000 ranks, more than 1,048,576",
        ),
        ("show bcast/circulant --chunks 999999999".split(), "1 to 65536 chunks, got 8, 0, 999999999"),
        ("show neighbor_alltoall/direct --grid 99999999x99999999".split(), "needs 1 to 1024 ranks"),
        (
            ["simulate", "neighbor_alltoall", "--grid", "x".join("1" * 99999)],
            "grid must look like 8, 4x2 or 2x2x2, got '1x1x1x",
        ),
        (
            "simulate neighbor_alltoall --grid 99999999x99999999".split(),
            "ranks and a root among them, got 9999999800000001 ranks",
        ),
        (
            ["show", "allreduce/hierarchical", "-n8", "--ranks-per-node", "9" * 5000],
            "nodes must look like 6, 3+1+4 or 2:cyclic, got '9",
        ),
        (
            "show allreduce/hierarchical -n 8 --ranks-per-node ²".split(),
            "nodes must look like 6, 3+1+4 or 2:cyclic, got '²'",
        ),
        (
            "verify barrier --max-nranks 99999999999".split(),
            "verify needs numbers of ranks from 1 to 1024",
        ),
        ("verify barrier --extra 4,99999999999".split(), "verify needs numbers of ranks from 1 to 1024"),
        ("verify barrier --jobs 99999999999".split(), "1 to 1024 jobs"),
        ("bench-torch --seconds nan".split(), "seconds must be above 0, got nan"),
        ("bench-torch -n 99999999999".split(), "iters must be from 1 to 10000000"),
        ("simulate allreduce -n 99999999999".split(), "simulate needs 2 to 262144 ranks"),
        ("simulate allreduce --bytes 8:1G:999999999".split(), "at most 1000 sizes, got '8:1G:999999999'"),
        (
            "simulate allreduce -n 4 --exact --segment 1 --bytes 1T --algorithms ring".split(),
            "too many to simul",
        ),
        *(
            (
                ["simulate", "allreduce", "--network", f"fast,{name}={value}"],
                f"network constant {name} must be a number from",
            )
            for name, value in (
                ("alpha", "0"),
                ("beta", "inf"),
                ("node.gamma", "-1"),
                ("eager", "nan"),
            )
        ),
    ],
)
def test_numbers_that_nothing_can_be_made_for(arguments: list[str], text: str, capsys: Capture) -> None:
    """Are refused before memory or time is spent on them, and not repeated at length."""
    compiled_loop()  # a new machine says that it compiles them
    capsys.readouterr()
    begun = time.process_time()
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert text in error
    assert len(error) < 300
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    "arguments",
    [
        *(["show", "-n", value] for value in ("9" * 5000, str(2**63), "1e3", "nan", "x\x1b[2J")),
        ["verify", "--extra", "9" * 5000],
        ["show", "\x1b[2J", "--\x1b]0;mine\x07"],
    ],
)
def test_what_is_no_number_is_not_repeated_at_length(arguments: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert len(error) < 600
    assert error.replace("\n", "").isprintable()


@pytest.mark.parametrize("arguments", [["nonsense"], ["show", "--nonsense"]])
def test_a_usage_error_is_exit_code_2(arguments: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: hpcoll" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "usage", "text"),
    [
        (
            ["bench", "--bogus"],
            "usage: hpcoll bench ",
            "hpcoll bench: error: unrecognized arguments: --bogus\n",
        ),
        (
            "simulate bcast --plt a.svg".split(),
            "usage: hpcoll simulate ",
            "--plt a.svg: did you mean --plot?\n",
        ),
        (["shwo"], "usage: hpcoll ", "got 'shwo': did you mean show?\n"),
        (
            "bench bcast --format jsn".split(),
            "usage: hpcoll bench ",
            "expected one of nccl, json, got 'jsn': did you mean json?\n",
        ),
        ("bench bcast -I 7".split(), "usage: hpcoll bench ", "expected one of 0, 1, got '7'\n"),
    ],
)
def test_a_usage_error_shows_the_usage_of_its_command(
    arguments: list[str], usage: str, text: str, capsys: Capture
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    said = capsys.readouterr().err
    assert said.startswith(usage)
    assert said.endswith(text)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["show", "allreduc"], "allreduce"),
        (["show", "allreduce/double-tree"], "double_tree"),
        (["verify", "allreduce/rign"], "allreduce/ring"),
        ("simulate bcast --network fsat".split(), "fast"),
        ("simulate bcast --network fast,alhpa=1".split(), "alpha"),
        ("synthesize bcast --topology rng:4".split(), "ring"),
        ("warmup --ops summ".split(), "sum"),
        ("warmup --types flaot".split(), "float"),
    ],
)
def test_a_refused_name_comes_with_the_one_that_was_meant(
    arguments: list[str], meant: str, capsys: Capture
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("hpcoll: error: ")
    assert said.endswith(f": did you mean {meant}?\n")


def test_commands_say_what_they_wrote(tmp_path: Path, capsys: Capture) -> None:
    files = [tmp_path / name for name in ("a.svg", "a.xml", "a.json")]
    assert main(f"show allreduce/ring -n 4 --svg {files[0]} --write {files[1]}".split()) == 0
    assert main(f"simulate bcast -n 4 --bytes 8 --algorithms binomial --json {files[2]}".split()) == 0
    assert capsys.readouterr().err == "".join(f"hpcoll: wrote {file}\n" for file in files)
    assert main(f"show allreduce/ring -n 4 --svg {tmp_path}/no/a.svg".split()) == 2
    assert "wrote" not in capsys.readouterr().err


def test_what_is_piped_is_not_cut() -> None:
    shown = run(f"env -u COLUMNS {sys.executable} -m hpcoll show").stdout
    assert "…" not in shown
    assert all(
        any(row.sent in line and row.summary in line for line in shown.splitlines())
        for row in CATALOGUE.values()
    )


@pytest.mark.ci
def test_pictures_of_many_ranks_can_be_read_or_are_refused(tmp_path: Path, capsys: Capture) -> None:
    target = tmp_path / "a.svg"
    assert main(f"show allreduce/ring -n 32 --svg {target}".split()) == 0
    assert len(re.findall(r">&gt;\d+ c\d+<", target.read_text())) == 32 * 62, (
        "each send has its peer and its chunk"
    )
    capsys.readouterr()
    assert main(f"show allreduce/ring -n 128 --svg {target}".split()) == 2
    assert "too many messages one after another for a picture: draw fewer ranks" in capsys.readouterr().err


def test_version(capsys: Capture) -> None:
    """The first two words are hpcoll's, the others those of what it uses; with --verbose each has a line."""
    assert main(["--version"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    own = f"hpcoll {hpcoll.__version__}"
    assert main(["--verbose", "--version"]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first == f"{own}, {ROOT / 'hpcoll'}"
    assert line == f"{own} ({', '.join(other.split(', ')[0] for other in others)})"
    assert f"Python {platform.python_version()}" in line
    assert re.search(r"(Open MPI|MPICH) \d+\.\d+\.\d+, mpi4py \d.*, Numba \d", line)


def test_version_without_an_mpi_library(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> tuple[str, str]:
        raise HpcollError("mpi4py cannot load an MPI library")

    monkeypatch.setattr("hpcoll.cli.version.library", fails)
    assert main(["--version"]) == 0
    assert ", no MPI library, mpi4py " in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_ends_with_an_example(command: Command, capsys: Capture) -> None:
    """The parser takes it, and help keeps it in a line of its own."""
    with pytest.raises(SystemExit):
        main([command.name, "--help"])
    assert capsys.readouterr().out.splitlines()[-1] == f"Example: {command.example}"
    words = shlex.split(command.example.split("hpcoll ", 1)[1])
    assert words[0] == command.name
    assert _parser(words[:1]).parse_args(words).run


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("hpcoll si", ["simulate"]),
        ("hpcoll show allreduce/double", ["allreduce/double_tree"]),
        ("hpcoll verify barr", ["barrier", "barrier/dissemination", "barrier/hierarchical"]),
        ("hpcoll bench --memory dev", ["device"]),
    ],
)
def test_the_shell_completes(line: str, found: list[str], tmp_path: Path) -> None:
    """As the shell asks: commands, their options and values, algorithms."""
    pytest.importorskip("argcomplete")
    asked = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n"}
    answer = tmp_path / "answer"
    environment = os.environ | asked | {"_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    done = subprocess.run([sys.executable, "-m", "hpcoll"], env=environment, cwd=tmp_path, check=False)
    assert done.returncode == 0
    assert [word.strip() for word in answer.read_text().splitlines()] == found


def test_verify_says_what_extra_takes(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main("verify --extra 6,x".split())
    assert (
        "argument --extra: expected numbers of ranks with commas, such as 96,128, got '6,x'"
        in capsys.readouterr().err
    )


def test_help_lists_the_commands(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert all(command.name in out and command.help in out for command in COMMANDS)


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=slowed(60), check=False
    )


def test_a_reader_that_goes_away_is_no_error() -> None:
    result = run(f"set -o pipefail; {sys.executable} -m hpcoll show allreduce/ring -n 40 | head -n 1")
    assert (result.returncode, result.stdout, result.stderr) == (
        0,
        "allreduce/ring on 40 ranks, 40 chunks, 1 channel\n",
        "",
    )


def test_a_terminal_without_box_characters_gets_others() -> None:
    result = run(f"PYTHONIOENCODING=ascii {sys.executable} -m hpcoll show bcast/binomial -n 3")
    assert (result.returncode, result.stderr) == (0, "")
    assert "|- 1" in result.stdout or "`- 1" in result.stdout
    result = run(f"PYTHONIOENCODING=ascii {sys.executable} -m hpcoll show allreduce/recursive_doubling -n 4")
    assert "round 1: 0<>1 2<>3" in result.stdout


@pytest.mark.parametrize(
    ("command", "stdout", "why"),
    [
        ("-m hpcoll show bcast/binomial -n 3", ">/dev/full", "No space left on device"),
        ("-u -m hpcoll show bcast/binomial -n 3", ">/dev/full", "No space left on device"),
        ("-m hpcoll show --help", ">/dev/full", "No space left on device"),
        ("-m hpcoll simulate barrier -n 4", ">&-", "it is closed"),
    ],
)
def test_output_that_cannot_be_written_is_one_line_and_no_answer(command: str, stdout: str, why: str) -> None:
    """Exit code 1 is kept for a command's answer, which is no."""
    result = run(f"env -u PYTHONUNBUFFERED {sys.executable} {command} {stdout}")
    assert (result.returncode, result.stderr) == (
        2,
        f"hpcoll: error: cannot write to standard output: {why}\n",
    )


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (lambda arguments: bytearray(1 << 60), "hpcoll: error: not enough memory: nothing says for what\n"),
        (lambda arguments: [][0], "IndexError: list index out of range\n"),
    ],
)
def test_memory_that_there_is_not_and_an_error_of_hpcolls_own_are_no_answer_either(
    fault: Callable[[object], object],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.setattr("hpcoll.cli.show.run", fault)
    assert main(["show"]) == 2
    assert capsys.readouterr().err.endswith(told)


def test_show_imports_no_other_command() -> None:
    program = (
        "import sys; from hpcoll.cli import main; main(['show', 'alltoall/direct']); print(*sys.modules)"
    )
    result = run(f'{sys.executable} -c "{program}"')
    loaded = set(result.stdout.splitlines()[-1].split())
    assert "hpcoll.cli.show" in loaded
    assert not loaded & {"mpi4py", "numba", "hpcoll.cli.bench.command", "hpcoll.cli.verify"}


def test_verify_prints_what_holds(capsys: Capture) -> None:
    assert main("verify allreduce/ring bcast --max-nranks 4 --extra 6,9 --jobs 1".split()) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].split("  ")[0] == "algorithm"
    assert lines[1].split()[:5] == "allreduce/ring 6 244 no yes".split()
    rows = [line.split()[0] for line in lines[1:] if "/" in line]
    assert rows == [key for key in CATALOGUE if key == "allreduce/ring" or key.startswith("bcast/")]
    assert "on 1 to 4, 6, 9 ranks" in captured.out
    assert captured.err == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["verify", "*/rings"], "no algorithm matches '*/rings': did you mean ring?"),
        ("verify --max-nranks 0".split(), "verify needs numbers of ranks from 1 to 1024 and 1 to 1024 jobs"),
    ],
)
def test_verify_refuses_what_it_cannot_do(arguments: list[str], text: str, capsys: Capture) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err == f"hpcoll: error: {text}\n"


def test_a_table_is_cut_at_the_width() -> None:
    assert table(["a", "b"], [["1", "long text"], ["23", "x"]], 8, numbers=[0]) == [
        " a  b",
        " 1  lon…",
        "23  x",
    ]


def test_warmup(capsys: Capture) -> None:
    assert main("warmup --types float,half --ops sum,max".split()) == 0
    assert capsys.readouterr().out.startswith("the engine and 4 kernels are in ")
    assert main("warmup --types float --ops band".split()) == 2
    assert "band" in capsys.readouterr().err


WARMUP = [sys.executable, "-m", "hpcoll", "warmup", "--types", "float"]


@pytest.mark.full  # compiles the engine; `test_disk_cache` has the modes of files, and who may use them
def test_warmup_of_a_site(tmp_path: Path) -> None:
    """Other users can read what it makes, and use it."""
    site, mine = tmp_path / "site", tmp_path / "mine"
    subprocess.run([*WARMUP, "--to", str(site)], check=True, env={**os.environ, "NUMBA_CACHE_DIR": str(mine)})
    modes = {path.stat().st_mode & 0o777 for path in site.iterdir()}
    # three of the engine, two of the comparison of calls, a kernel, and the versions of the compilers
    assert (site.stat().st_mode & 0o777, modes, len(list(site.iterdir()))) == (
        0o755,
        {0o644},
        7,
    )
    subprocess.run(
        WARMUP, check=True, env={**os.environ, "NUMBA_CACHE_DIR": str(mine), "HPCOLL_CACHE": str(site)}
    )
    assert not list(mine.rglob("*.code"))


def test_warmup_compiles_nothing_that_cannot_be_kept(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    site.chmod(0o777)
    done = subprocess.run([*WARMUP, "--to", str(site)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"hpcoll: error: nothing can be kept: {site} can be written by other users")
