"""Schedules for other tools: MSCCL XML and JSON are read again and proven again, GOAL is run by an interpreter of its own."""

import json
import re
from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcoll.analysis.programs.proof import verify_program
from hpcoll.analysis.verify import verify_schedules
from hpcoll.base import json_schema
from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.base.json_fields import read_json
from hpcoll.cli import main
from hpcoll.formats.goal import goal_text
from hpcoll.formats.msccl_steps import read_msccl_xml
from hpcoll.formats.msccl_write import COLLECTIVES as IN_MSCCL
from hpcoll.formats.msccl_write import msccl_text
from hpcoll.formats.program import FileProgram
from hpcoll.formats.schedule_json import content_hash, read_schedule, schedule_text
from hpcoll.formats.schedule_json import json_schema as schema_of_schedules
from hpcoll.formats.write import program_of, written_for
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Op, Step, inputs
from hpcoll.schedules.row import Algorithm, schedule

ROWS = list(CATALOGUE.values())


def program(row: Algorithm, nranks: int, root: int = 0) -> FileProgram:
    """A row's program, of three chunks where it takes any number, with two ranks per node where it looks at them."""
    nodes = tuple(rank // 2 for rank in range(nranks)) if row.placed else ()
    return program_of(
        row, [schedule(row, nranks, rank, root, 3 if row.chunked else 1, nodes) for rank in range(nranks)]
    )


def proven(found: FileProgram) -> None:
    for in_place in found.modes:
        verify_program(found.schedules, found.meaning, in_place=in_place)


def xml_again(text: str, path: Path) -> FileProgram:
    path.write_text(text)
    return read_msccl_xml(path)


@pytest.mark.parametrize("row", [row for row in ROWS if row.collective in IN_MSCCL], ids=lambda row: row.key)
def test_xml_of_every_row_is_proven_again(row: Algorithm, tmp_path: Path) -> None:
    """Also what is written of a file: there a thread block is a channel, and dependencies are AFTER steps."""
    for nranks in range(2, 9):
        for root in {0, nranks - 1} if COLLECTIVES[row.collective].rooted else {0}:
            written = msccl_text(program(row, nranks, root))
            found = xml_again(written.text, tmp_path / "a.xml")
            proven(found)
            assert not written.note
            assert (found.collective, found.root, found.modes) == (
                row.collective,
                root,
                program(row, nranks).modes,
            )
    again = xml_again(msccl_text(found).text, tmp_path / "b.xml")
    proven(again)
    assert [len(s.channels) for s in again.schedules] == [len(s.channels) for s in found.schedules]


@pytest.mark.parametrize(
    "key", ["allreduce/two_shot", "allreduce/double_tree", "allreduce/rabenseifner", "reduce_scatter/direct"]
)
def test_xml_has_no_needless_dependency(key: str, tmp_path: Path) -> None:
    """Without any one of them two thread blocks race for a chunk."""
    text = msccl_text(program(CATALOGUE[key], 5)).text
    dependencies = list(re.finditer(r'depid="\d+" deps="\d+"', text))
    assert dependencies
    for at in dependencies:
        with pytest.raises(ScheduleError):
            proven(
                xml_again(text[: at.start()] + 'depid="-1" deps="-1"' + text[at.end() :], tmp_path / "a.xml")
            )


def test_xml_says_what_rccl_refuses_and_refuses_what_msccl_lacks(tmp_path: Path) -> None:
    """A ring of 64 ranks has more steps than RCCL's reader takes; a barrier has no name in MSCCL."""
    assert (
        "127 steps of a thread block, of at most 64"
        in msccl_text(program(CATALOGUE["allreduce/ring"], 64)).note
    )
    with pytest.raises(ArgumentError, match="got barrier"):
        msccl_text(program(CATALOGUE["barrier/dissemination"], 4))


def test_a_ring_sends_on_what_it_receives() -> None:
    """A step that receives, reduces and sends on keeps data in registers: of four ranks, three of each kind but the last."""
    text = msccl_text(program(CATALOGUE["allreduce/ring"], 4)).text
    types = re.findall(r'type="(\w+)"', text[: text.index("</gpu>")])
    assert types == ["s", "rrcs", "rrcs", "rrcs", "rcs", "rcs", "r"]


def test_signals_are_put_in_one_lane_for_xml(tmp_path: Path) -> None:
    """MSCCL has no message without data; the order that it stands for is kept by thread blocks and dependencies."""
    found = program(CATALOGUE["allgather/direct"], 3)
    signal = inputs(0)._replace(n=0)
    schedules = []
    for s in found.schedules:
        peers = [peer for peer in range(3) if peer != s.rank]
        ready = [Step(Op.SEND, peer, None, (signal,)) for peer in peers] + [
            Step(Op.RECV, peer, signal, ()) for peer in peers
        ]
        schedules.append(s._replace(channels=((*ready, *s.channels[0]),), links=(0,)))
    found = found._replace(schedules=tuple(schedules))
    proven(found)
    assert 'cnt="0"' not in written_for(".xml", found, 1, 0.0).text
    proven(xml_again(written_for(".xml", found, 1, 0.0).text, tmp_path / "a.xml"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_json_is_read_again(row: Algorithm, tmp_path: Path) -> None:
    """The same schedules, the same hash, and they keep what a proof needs of extents and graphs."""
    for nranks in (1, 2, 5, 8):
        before = program(row, nranks, nranks - 1 if COLLECTIVES[row.collective].rooted else 0)
        path = tmp_path / "a.json"
        path.write_text(schedule_text(before))
        found = read_schedule(read_json(path, "a.json"), "a.json")
        assert content_hash(found) == content_hash(before)
        assert (found.schedules, found.modes, found.uniform) == (
            before.schedules,
            before.modes,
            before.uniform,
        )
        for in_place in found.modes:
            verify_schedules(found.schedules, in_place=in_place, uniform=found.uniform)


def test_json_of_a_file_keeps_links_and_orders(tmp_path: Path) -> None:
    """Channels that share a link, and AFTER steps, come only from files."""
    found = xml_again(msccl_text(program(CATALOGUE["allreduce/two_shot"], 4)).text, tmp_path / "a.xml")
    assert any(step.op is Op.AFTER for s in found.schedules for steps in s.channels for step in steps)
    again = read_schedule(json.loads(schedule_text(found)), "a.json")
    assert again.schedules == found.schedules
    proven(again)


def test_json_does_not_change_what_in_place_means(tmp_path: Path) -> None:
    """A reduce_scatter in place is none of hpcoll's: read again it would be proven for something else."""
    text = msccl_text(program(CATALOGUE["reduce_scatter/ring"], 3)).text
    found = xml_again(
        text.replace('inplace="0" outofplace="1"', 'inplace="1" outofplace="0"'), tmp_path / "a.xml"
    )
    with pytest.raises(
        ArgumentError, match="JSON needs calls in place as hpcoll has them, got others of reduce_scatter"
    ):
        schedule_text(found)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('"root": 0', '"root": 3', "field root: expected a rank below 3"),
        ('"root": 0', '"root": true', "field root: expected an integer, got true"),
        ('"nchunks": 3', f'"nchunks": {10**30}', "field nchunks: expected an integer from 1 to 65536"),
        ('"collective": "allreduce"', '"collective": "dance"', "field collective: expected one of allreduce"),
        ('"peer": 1, ', '"peer": -1, ', r"\.peer: expected an integer from 0"),
        ('"peer": 1, ', "", r"ranks\[0\]: expected steps with the fields that their op needs"),
        ('"op": "send"', '"op": "wink"', r"\.op: expected one of send"),
        ('["input", 2, 1]', '["input", 2]', r"srcs\[0\]: expected 3 items"),
        ('["input", 2, 1]', '["input", 1, 1]', "field sha256: expected"),
        ('["input", 2, 1]', f'["input", 2, {10**18}]', "got one with too many chunks that steps name"),
        ('"name": "ring"', '"game": "ring"', "expected a field name"),
        ('"hpcoll_schedule": 1', '"hpcoll_schedule": 2', "field hpcoll_schedule: expected one of 1, got 2"),
    ],
)
def test_json_that_does_not_fit_is_refused_in_a_line(old: str, new: str, text: str) -> None:
    """The field, what was expected of it, and what it is; what was changed by hand has another hash."""
    content = schedule_text(program(CATALOGUE["allreduce/ring"], 3))
    assert old in content
    with pytest.raises(ArgumentError, match=text) as error:
        read_schedule(json.loads(content.replace(old, new, 1)), "a.json")
    assert "\n" not in str(error.value)


def test_long_json_is_refused_at_once() -> None:
    """A list of millions of empty channels would take a minute, and a gigabyte, to read."""
    document = json.loads(schedule_text(program(CATALOGUE["allreduce/ring"], 3)))
    document["ranks"][0]["channels"] = [[]] * 3_000_000
    with pytest.raises(ArgumentError, match=r"a\.json: expected at most 2,000,000 values, got more"):
        read_schedule(document, "a.json")


def test_the_schema_says_nothing_that_the_reader_ignores() -> None:
    """A keyword that hpcoll's reader of schemas does not know would be documented and not checked."""
    named, todo = set[str](), [schema_of_schedules()]
    while todo:
        rule = todo.pop()
        named |= set(rule)
        todo += [
            *rule.get("properties", {}).values(),
            *rule.get("$defs", {}).values(),
            *rule.get("prefixItems", []),
        ]
        todo += [rule[key] for key in ("items",) if key in rule]
    assert named <= json_schema.KEYWORDS


class Goal:
    """An interpreter of GOAL text: operations by rank and label, and what each needs."""

    def __init__(self, text: str) -> None:
        self.operations: dict[tuple[int, str], list[str]] = {}
        self.needs: dict[tuple[int, str], set[tuple[int, str]]] = defaultdict(set)
        rank = -1
        for line in text.splitlines()[1:]:
            words = line.split()
            if line.startswith("rank "):
                rank = int(words[1])
            elif len(words) == 3 and words[1].endswith("requires"):
                assert {(rank, words[0]), (rank, words[2])} <= set(self.operations), (
                    f"{line} names what stands below it"
                )
                self.needs[rank, words[0]].add((rank, words[2]))
            elif words and words[0] != "}":
                self.operations[rank, words[0].rstrip(":")] = words[1:]

    def messages(self, word: str) -> Iterator[tuple[tuple[int, str], tuple[int, int, str]]]:
        """The sends or receives, each with sender, receiver and tag."""
        for (rank, label), words in self.operations.items():
            if words[0] == word:
                ends = (rank, int(words[3])) if word == "send" else (int(words[3]), rank)
                yield (rank, label), (*ends, words[5])

    def depth(self) -> int:
        """Return the longest chain of messages, after all operations have run, each behind what it needs."""
        sent = defaultdict(deque)
        for at, way in self.messages("send"):
            sent[way].append(at)
        partner = {at: sent[way].popleft() for at, way in self.messages("recv")}
        assert not any(sent.values()), "messages that nobody receives"
        assert all(self.operations[at][1] == self.operations[other][1] for at, other in partner.items()), (
            "unequal sizes"
        )
        depths, todo = dict[tuple[int, str], int](), deque(self.operations)
        waits = 0
        while todo:
            at = todo.popleft()
            needs = self.needs[at] | ({partner[at]} if at in partner else set())
            if needs <= depths.keys():
                depths[at] = max([depths[need] for need in self.needs[at]], default=0)
                if at in partner:
                    depths[at] = max(depths[at], depths[partner[at]] + 1)
                waits = 0
            else:
                todo.append(at)
                waits += 1
                assert waits <= len(todo), "operations wait for each other"
        return max(depths.values(), default=0)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_goal_has_the_messages_and_the_rounds_of_the_schedule(row: Algorithm) -> None:
    """The longest chain of messages in the text is as long as the verifier's."""
    for nranks in (2, 5, 8):
        before = program(row, nranks)
        goal = Goal(goal_text(before.schedules, 1 << 20, 0.01))
        proof = verify_schedules(before.schedules, in_place=before.modes[0], uniform=before.uniform)
        assert len(list(goal.messages("send"))) == proof.messages
        assert goal.depth() == proof.rounds


def test_goal_orders_thread_blocks(tmp_path: Path) -> None:
    """Dependencies between the channels of a file are requirements: the text has as many rounds as the schedule it came from."""
    before = program(CATALOGUE["allreduce/two_shot"], 4)
    found = xml_again(msccl_text(before).text, tmp_path / "a.xml")
    assert Goal(goal_text(found.schedules, 1000, 0.01)).depth() == 2
    assert "calc 24\n" in goal_text(before.schedules, 3200, 0.01), "three times 800 bytes are folded in 24 ns"


def test_show_writes_by_suffix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command writes each format, says what RCCL refuses, and names the suffixes that it knows."""
    for suffix, begin in (("xml", "<algo name="), ("goal", "num_ranks 4"), ("json", "{")):
        assert (
            main(
                [
                    "show",
                    "allreduce/ring",
                    "-n",
                    "4",
                    "--bytes",
                    "64K",
                    "--write",
                    str(tmp_path / f"a.{suffix}"),
                ]
            )
            == 0
        )
        assert (tmp_path / f"a.{suffix}").read_text().startswith(begin)
    assert "send 16384b to" in (tmp_path / "a.goal").read_text()
    assert main(["show", "allreduce/ring", "-n", "64", "--write", str(tmp_path / "a.xml")]) == 0
    assert "RCCL's reader refuses it: 127 steps" in capsys.readouterr().out
    assert main(["show", "allreduce/ring", "-n", "4", "--write", str(tmp_path / "a.txt")]) == 2
    assert "ends in .xml, .goal, .json, got '.txt'" in capsys.readouterr().err
    assert (
        main(["show", "allreduce/ring", "-n", "4", "--calc", "nan", "--write", str(tmp_path / "b.goal")]) == 2
    )
    assert "a time from 0 to 1e+09 for each, got 1048576 and nan" in capsys.readouterr().err


def test_commands_read_what_show_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON of neighbours is proven and drawn, and becomes another format; other JSON is not understood, in a line."""
    path, other = tmp_path / "grid.json", tmp_path / "other.json"
    assert main(["show", "neighbor_alltoall/direct", "--grid", "2x3", "--write", str(path)]) == 0
    assert main(["verify", str(path)]) == 0
    assert main(["show", str(path)]) == 0
    assert "who sends to whom" in capsys.readouterr().out
    assert main(["show", str(path), "--write", str(tmp_path / "grid.goal")]) == 0
    assert (tmp_path / "grid.goal").read_text().startswith("num_ranks 6")
    other.write_text('{"hpcoll_schedule": 1}')
    assert main(["verify", str(other)]) == 2
    assert "other.json: the whole: expected a field name, got" in "".join(capsys.readouterr())
