"""``hpcoll trace``: from traces made up, who waited for whom; two runs compared; the page; files of killed runs and of anybody."""

import json
import random
import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trace_cases as cases
from browser import Browser
from slowness import slowed

from hpcoll.analysis.waits import judge
from hpcoll.base.errors import ArgumentError
from hpcoll.cli import main
from hpcoll.cli.trace import perfetto
from hpcoll.cli.trace.owners import find
from hpcoll.cli.trace.reading import read
from hpcoll.cli.trace.summary import operations, rank_waits
from hpcoll.runtime.program.opcodes import Code
from hpcoll.runtime.telemetry.trace_blocks import MAGIC

Capture = pytest.CaptureFixture[str]

EVIL = "</script><script>document.title='evil'</script><img src=x onerror=\"document.title='evil'\">&$title"
Text = Callable[..., str]


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str | bytes, str], str]:
    """Write a trace and return its name."""

    def write(text: str | bytes, name: str = "run.trace") -> str:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def printed(capsys: Capture, *arguments: str, code: int = 0) -> str:
    """What the command prints, to stderr where it fails."""
    assert main(["trace", *arguments]) == code
    out, err = capsys.readouterr()
    assert not out if code else all(line.startswith("hpcoll: wrote ") for line in err.splitlines())
    return " ".join((err if code else out).split())


def test_who_was_late_and_what_it_cost(file: Text) -> None:
    """Each step rank 2 begins the Allreduce 286 to 300 us after the others, rank 3 the Iallreduce, rank 0 the Bcast."""
    trace = read([file(cases.events(10).content())])
    ranks = rank_waits(trace, find(trace))
    assert [(one.rank, one.host, one.calls, one.held_up_by) for one in ranks] == [
        (0, "node0", 30, {2: 10, 3: 10}),
        (1, "node0", 30, {0: 10, 2: 10, 3: 10}),
        (2, "node1", 30, {0: 10, 3: 10}),
        (3, "node1", 30, {0: 10, 2: 10}),
    ]
    assert judge(ranks).worst == 2
    assert "came last in 33 % of the calls" in judge(ranks).verdict
    assert ranks[0].waited_for == pytest.approx({2: 10 * 314e-6, 3: 10 * 33e-6}, rel=1e-3), (
        "300 us late, and seven for each rank"
    )
    assert sum(one.caused.get(2, 0) for one in ranks) == pytest.approx(
        10 * (314 + 307 + 293) / 3 * 1e-6, rel=1e-3
    )
    assert ranks[1].hidden_s == pytest.approx(10 * 100e-6), (
        "the program waits for its Iallreduce 100 us after it began it"
    )
    assert ranks[1].moved_s == pytest.approx(10 * (40 + 20 + 15) * 1e-6, rel=1e-3)
    assert {(place.place, place.region, place.calls) for place in ranks[1].places} == {
        ("train.py:88", "step", 10),
        ("", "step", 10),
        ("train.py:90", "step", 10),
    }


def test_a_first_call_inherits_nothing(file: Text) -> None:
    """What other ranks have spent before is not what the late one has: nothing held it up before the first Allreduce."""
    waits = find(read([file(cases.events(1).content())]))
    assert waits.inherited[waits.owner == 2].tolist() == [0.0] * 3


def test_calls_of_a_killed_rank_moved_nothing(file: Text) -> None:
    """It was killed in the last of ten steps: nobody knows whether the others waited there for it, or moved data."""
    run, short = cases.events(10), cases.events(9)
    content = b"".join(map(run.of_rank, range(3))) + short.of_rank(3)
    trace = read([file(content)])
    rank = rank_waits(trace, find(trace))[1]
    assert (rank.calls, rank.uncompared) == (27, 3)
    found_s = rank.moved_s, sum(place.moved_s for place in rank.places), rank.hidden_s
    assert found_s == pytest.approx((9 * 75e-6, 9 * 75e-6, 9 * 100e-6), rel=1e-3)


def test_clocks_that_differ_by_less_than_their_error_blame_nobody(file: Text) -> None:
    """Without the late rank, ranks of one host are still told apart, of different hosts only by more than both clocks' errors."""
    run = cases.Run(cases.RANKS, clock_error_us=8.0)
    for step in range(10):
        for rank in run.ranks:
            run.call(rank, "Allreduce", step + 1, 1000 * step + 7 * rank, 1000 * step + 100)
    trace = read([file(run.content())])
    found_us = [
        {owner: round(seconds * 1e6) for owner, seconds in one.waited_for.items()}
        for one in rank_waits(trace, find(trace))
    ]
    assert found_us == [{3: 210}, {}, {3: 70}, {}]


def test_what_a_killed_run_leaves_is_read(file: Text, capsys: Capture) -> None:
    """The last block is cut anywhere; a rank that was killed first has left a block that is cut before that of another one."""
    ranks = [cases.events(3).of_rank(rank) for rank in range(4)]
    whole = b"".join(ranks)
    for cut in range(whole.rindex(MAGIC), len(whole), 7):
        read([file(whole[:cut])])
    for cut in (1, 20, 60, 100, 200):
        assert "of 4 ranks on 2 hosts" in printed(capsys, file(b"".join([ranks[0][:-cut], *ranks[1:]])))


def test_the_order_of_blocks_and_files_is_no_matter(file: Text, capsys: Capture) -> None:
    ranks = [cases.events(5).of_rank(rank) for rank in range(4)]
    expected = printed(capsys, file(b"".join(ranks)))
    assert printed(capsys, file(b"".join(ranks[i] for i in (2, 0, 3, 1)))) == expected
    halves = [file(b"".join(half), f"{i}.trace") for i, half in enumerate((ranks[::2], ranks[1::2]))]
    assert printed(capsys, *halves) == expected


def test_ranks_that_a_trace_claims_take_no_room(file: Text, capsys: Capture) -> None:
    """Neither a run of so many ranks, nor a rank, a lane, or a communicator of so high a number."""
    most = 2**31 - 1
    whole = cases.many_ranks(2, steps=2).content()
    claims = printed(capsys, file(cases.said_as(whole, b'"ranks":2', b'"ranks":%d' % most)))
    assert claims.endswith(f"ranks 2-{most - 1} left nothing in it")
    run = cases.many_ranks(2, steps=2)
    content = run.of_rank(0, size=most) + run.of_rank(1, size=most)
    assert "4 of 4 calls are not known of all ranks" in printed(capsys, file(content))
    run = cases.Run(most)
    run.call(most - 1, "Allreduce", most, 1, 2, lane=most)
    assert printed(capsys, file(run.of_rank(most - 1))).startswith("1 call of 1 rank")


@pytest.mark.parametrize("kind", ["ranks", "names and hosts", "communicators"])
def test_the_time_is_linear_in_ranks_names_hosts_and_communicators(file: Text, kind: str) -> None:
    """Eight times as many take eight times as long; what was quadratic took 30 to 60 times as long."""

    def took(nranks: int) -> float:
        many = {"names": nranks, "per_host": 1} if kind == "names and hosts" else {}
        run = cases.many_ranks(nranks, **many)
        texts = (
            run.of_rank(rank, f"half {rank // 2}", 2, rank % 2)
            if kind == "communicators"
            else run.of_rank(rank)
            for rank in range(nranks)
        )
        name, found = file(b"".join(texts)), list[float]()
        for _ in range(2):
            begun = time.process_time()
            trace = read([name])
            judge(rank_waits(trace, find(trace)))
            found.append(time.process_time() - begun)
        return min(found)

    took(20)
    assert took(1600) < 20 * took(200)


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"\x00\xff\xfe\x80", "expected a block of a trace, got another one"),
        (b"17", "expected a block of a trace, got another one"),
        (f'{{"rank":{DEEP}'.encode(), "expected a block of a trace, got another one"),
        (b'{"rank":-3}', "expected a whole number from 0 to 2147483646, got -3"),
        (b'{"rank":0,"calls":5,"first":1}', "expected a block of a trace, got another one"),
        (b'{"rank":0,"calls":0,"first":1e300}', "expected a whole number from 0 to"),
        (b'{"rank":0,"calls":0,"first":1,"clock":[0,0,NaN]}', "expected a line of a clock, got another one"),
        (b'{"rank":0,"places":[1]}', "expected a block of a trace, got another one"),
        (b'{"rank":0,"version":"0"}', "expected the trace of one run, got rank 0 twice"),
    ],
)
def test_what_is_bad_is_refused_by_file_and_byte(file: Text, capsys: Capture, bad: bytes, said: str) -> None:
    before = cases.events(1).of_rank(0)
    name = file(before + MAGIC + struct.pack("<II", len(bad), 0) + bad)
    error = printed(capsys, name, code=2)
    assert error.startswith(f"hpcoll: error: {name}, byte {len(before)}: {said}")
    assert len(error) < 4500


def test_files_that_are_none_are_refused(file: Text, capsys: Capture) -> None:
    assert "got no slices" in printed(capsys, file(b"[]"), code=2)
    assert "expected JSON" in printed(capsys, file(b""), code=2)
    assert "cannot read" in printed(capsys, file(b"") + "-none", code=2)
    trace = file(cases.events(1).content())
    for option in ("--html", "--perfetto"):  # what is written must not replace the first of many traces
        assert "which is a trace's" in printed(capsys, option, trace, trace, code=2)


def test_any_change_of_a_byte_is_read_or_refused(file: Text) -> None:
    """Whatever a file holds, there is an answer or an error, and no other exception."""
    text, chance = cases.events(2).content(), random.Random(7)
    for _ in range(150):
        mutated = bytearray(text)
        for _ in range(chance.randrange(1, 4)):
            mutated[chance.randrange(len(text))] = chance.choice(b'{}[]",:0-9e.\x00\xff\n ax')
        try:
            trace = read([file(bytes(mutated))])
            waits = find(trace)
            rank_waits(trace, waits)
            operations(trace, waits)
            perfetto.text(trace, waits)
        except ArgumentError:
            continue


def test_traces_of_other_tools_have_their_slices(file: Text, capsys: Capture) -> None:
    """A document with traceEvents in several lines, as profilers write it; slices by two events, and what is missing is said."""
    events: list[dict[str, Any]] = [
        {
            "ph": "X",
            "name": "ncclDevKernel_AllReduce",
            "pid": "GPU 0",
            "tid": "stream 7",
            "ts": 5.5,
            "dur": 4000,
            "args": {},
        },
        {"ph": "B", "name": "step", "pid": 1, "tid": 1, "ts": 1},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 9001},
        {"ph": "i", "name": "instant", "pid": 1, "tid": 1, "ts": 3},
    ]
    text = printed(capsys, file(json.dumps({"traceEvents": events}, indent=2)))
    assert text.startswith(
        "2 slices of other tools within 9 ms slice times took step 1 9 ms ncclDevKernel_AllReduce 1 4 ms"
    )
    assert "no calls of hpcoll are in it, so nobody's waits are known" in text
    events[0]["dur"] = -1
    assert "event 1: expected finite times" in printed(capsys, file(json.dumps(events)), code=2)


def test_two_runs_compared(file: Text, capsys: Capture) -> None:
    now, before = (file(cases.events(10, late_us=late).content(), f"{late}.trace") for late in (300, 100))
    text = printed(capsys, now, "--against", before)
    assert "Allreduce train.py:88 40 40 40 MiB 40 MiB 3.14 ms 9.14 ms 1.6 ms 1.6 ms" in text
    assert text.endswith(
        "changed most: Allreduce at train.py:88, where ranks waited 9.14 ms instead of 3.14 ms, 2.91 times as long"
    )
    assert printed(capsys, now, "--against", now).endswith(
        "than before by more than 1 % of the time in all calls"
    )


def html(file: Text, capsys: Capture, text: bytes, name: str = "run.trace") -> Path:
    path = Path(file("", "page.html"))
    printed(capsys, file(text, name), "--html", str(path))
    return path


def test_the_page_has_all_ranks_and_needs_no_network(file: Text, capsys: Capture) -> None:
    page = html(file, capsys, cases.events(20).content()).read_text()
    for rank in range(cases.RANKS):
        assert f"<td>{rank}</td><td>node{rank // 2}</td>" in page
        assert f'"label":"rank {rank}"' in page
    assert "://" not in page
    assert len(page) < 60_000


def test_steps_are_on_the_page_alone(file: Text, capsys: Capture) -> None:
    """Steps count as no calls and no waits, whether read or left out; on the page they are one track below the calls of their rank."""
    run = cases.events(20)
    plain, begin = printed(capsys, file(run.content())), 1_000_000
    steps = [
        [1, begin + 100 * i, begin + 100 * i + 100, code | 2 << 36, 8]
        for i, code in enumerate((Code.SEND, Code.WAIT, Code.REDUCE))
    ]
    content = run.content() + cases.written({"rank": 0, "steps": 0}, steps)
    with_steps = file(content)
    assert printed(capsys, with_steps) == printed(capsys, with_steps, "--html", f"{with_steps}.html") == plain
    made = html(file, capsys, content).read_text()
    tracks = json.loads(made.split('"tracks":')[1].split(',"main"')[0])
    assert [track["end"] - track["first"] for track in tracks if track["kind"] == "step"] == [3]
    assert '"wait for 1"' in made


def test_the_page_escapes_what_files_say(file: Text, capsys: Capture) -> None:
    """Names of communicators, places, hosts and files are texts, not markup: no tag of theirs is in the page."""
    run = cases.Run(2, comm=EVIL)
    for rank in run.ranks:
        run.call(rank, "Allreduce", 1, 10.0 * rank, 30, at=EVIL, region=EVIL, algorithm=EVIL)
        run.region(rank, EVIL, 0, 40)
    content = cases.said_as(run.content(), b'"host":"node', b'"host":"<img>')
    page = html(file, capsys, content, "<b>&.trace").read_text()
    assert page.count("<script") == page.count("</script>") == 3
    assert "<img" not in page
    assert "<b>" not in page
    assert "&lt;b&gt;&amp;.trace" in page


NEEDS_CHROMIUM = pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is not installed")


@NEEDS_CHROMIUM
def test_a_browser_draws_the_page_and_runs_no_script_of_the_trace(file: Text, capsys: Capture) -> None:
    """The page says how many slices it has drawn once it has, and keeps its title."""
    path = html(file, capsys, cases.events(20, comm=EVIL).content())
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=3000",
        "--dump-dom",
        "--enable-logging=stderr",
    ]
    done = subprocess.run(
        ["chromium", *flags, path.as_uri()], capture_output=True, text=True, check=True, timeout=100
    )
    assert 'data-drawn="400"' in done.stdout
    assert "<title>run.trace</title>" in done.stdout
    assert "CONSOLE" not in done.stderr


@NEEDS_CHROMIUM
def test_the_mouse_zooms_moves_and_points(file: Text, capsys: Capture, tmp_path: Path) -> None:
    """At one place of the screen lies the Allreduce, none after zooming in at the right, and the Allreduce again after drags."""
    path = html(file, capsys, cases.events(1).content())
    with Browser(path.as_uri(), tmp_path / "profile", slowed(60)) as page:
        page.wait("document.documentElement.dataset.drawn === '20'")
        left, top, width = page.value(
            "(({x, y, width}) => [x, y, width])(document.getElementById('timeline').getBoundingClientRect())"
        )
        there, right = (left + 0.3 * width, top + 68), (left + 0.85 * width, top + 68)

        def pointed_at() -> str:
            page.mouse("mouseMoved", there)
            return str(
                page.value(
                    "document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent"
                )
            )

        assert pointed_at().startswith("rank 0 on node0\nAllreduce, call 1 on MPI_COMM_WORLD\n1 MiB")
        assert "waits 314 us for rank 2, then 40 us" in pointed_at()
        for _ in range(3):
            page.mouse("mouseWheel", right, deltaX=0, deltaY=-60, modifiers=2)
        assert "Allreduce" not in pointed_at()
        for _ in range(8):
            page.mouse("mousePressed", (left + 0.2 * width, top + 68), button="left", buttons=1, clickCount=1)
            page.mouse("mouseMoved", right, button="left", buttons=1)
            page.mouse("mouseReleased", right, button="left", clickCount=1)
        assert "Allreduce" in pointed_at(), "dragged to the begin of the run"
        page.mouse("mouseMoved", (1, 1))
        assert page.value("document.getElementById('tip').hidden")
