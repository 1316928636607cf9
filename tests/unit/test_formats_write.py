"""Schedules for other tools: MSCCL XML is read again and proven again, GOAL is run by an interpreter of its own."""

import re
from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcoll.analysis.programs.proof import verify_program
from hpcoll.analysis.verify import verify_schedules
from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.cli import main
from hpcoll.formats.conditions import MSCCL as IN_MSCCL
from hpcoll.formats.goal import goal_text
from hpcoll.formats.msccl_steps import read_msccl_xml
from hpcoll.formats.msccl_write import msccl_text
from hpcoll.formats.program import FileProgram
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
    assert types == "s rrcs rrcs rrcs rcs rcs r".split()


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
    for suffix, begin in (("xml", "<algo name="), ("goal", "num_ranks 4")):
        assert main(f"show allreduce/ring -n 4 --bytes 64K --write {tmp_path}/a.{suffix}".split()) == 0
        assert (tmp_path / f"a.{suffix}").read_text().startswith(begin)
    assert "send 16384b to" in (tmp_path / "a.goal").read_text()
    assert main(f"show allreduce/ring -n 64 --write {tmp_path}/a.xml".split()) == 0
    assert "RCCL's reader refuses it: 127 steps" in capsys.readouterr().out
    assert main(f"show allreduce/ring -n 4 --write {tmp_path}/a.txt".split()) == 2
    assert "ends in .xml, .goal, got '.txt'" in capsys.readouterr().err
    assert main(f"show allreduce/ring -n 4 --calc nan --write {tmp_path}/b.goal".split()) == 2
    assert "a time from 0 to 1e+09 for each, got 1048576 and nan" in capsys.readouterr().err


def test_commands_read_what_show_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """XML is proven and drawn, and becomes another format; JSON that an earlier hpcoll wrote is refused in a line that says so."""
    path, other = tmp_path / "ring.xml", tmp_path / "other.json"
    assert main(f"show allreduce/ring -n 3 --write {path}".split()) == 0
    assert main(["verify", str(path)]) == 0
    assert main(["show", str(path)]) == 0
    assert ">1 sends to rank 1" in capsys.readouterr().out
    assert main(f"show {path} --write {tmp_path}/ring.goal".split()) == 0
    assert (tmp_path / "ring.goal").read_text().startswith("num_ranks 3")
    other.write_text('{"hpcoll_schedule": 1}')
    assert main(["verify", str(other)]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert "other.json: expected MSCCL XML or an MSCCL++ plan, got JSON of an earlier hpcoll" in line
