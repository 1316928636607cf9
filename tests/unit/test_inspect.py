"""``hpcoll inspect``: from records of a few ranks, what differs, who waits for whom, and who was late."""

import json
from pathlib import Path
from typing import Any

import pytest
from flight_cases import BARRIER, BCAST, ROW, START, WORLD, call, part, record, world, write

from hpcoll.cli import main
from hpcoll.cli.output import grid


class Inspector:
    """Inspects records."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys

    def text(self, records: list[Any], code: int = 1) -> str:
        files = write(self.folder, records)
        assert main(["inspect", *files]) == code
        out = self.capsys.readouterr().out
        assert main(["inspect", *reversed(files)]) == code
        assert self.capsys.readouterr().out == out, "the order of files is no matter"
        assert "…" not in out, "what is piped is not cut"
        return out

    def found(self, records: list[Any], code: int = 1) -> tuple[dict[str, Any], str]:
        """Findings by kind, and the summary."""
        summary = " ".join(self.text(records, code).rpartition("\n\n")[2].split())
        assert main(["inspect", "--json", *write(self.folder, records)]) == code
        document = json.loads(self.capsys.readouterr().out)
        assert document["summary"] == summary
        return {finding["kind"]: finding for finding in document["findings"]}, summary


@pytest.fixture
def flight(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Inspector:
    return Inspector(tmp_path, capsys)


DIFFERENT = """\
4 records of 4 ranks on 1 host, written within 0 us: train.py --x
  ranks 0-3: MismatchError: calls differ

the 2nd call on MPI_COMM_WORLD: calls differ
                call                              state   caller
  ranks 0, 2-3  Allreduce(float64[4096], op=SUM)  failed  train.py:12
  rank 1        Bcast(float64[8], root=0)         failed  train.py:20

rank 1 called Bcast where the others called Allreduce, their 2nd call on MPI_COMM_WORLD
"""


def test_calls_that_differ(flight: Inspector) -> None:
    usual, odd = call(2, "failed"), call(2, "failed", **BCAST, algorithm="two_shot")
    records = world(
        *([call(1), odd if rank == 1 else usual] for rank in range(4)), why="MismatchError: calls\ndiffer"
    )
    assert flight.text(records) == DIFFERENT


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (
            {"count": 10},
            "rank 1 called Allreduce(float64[10], op=SUM) where the others called Allreduce(float64[4096], op=SUM), their 3rd",
        ),
        ({"element": "int32"}, "Allreduce(int32[4096], op=SUM)"),
        ({"op": "MAX"}, "Allreduce(float64[4096], op=MAX)"),
        ({"root": 2}, "Allreduce(float64[4096], op=SUM, root=2)"),
        ({"algorithm": "ring"}, "rank 1 called Allreduce(float64[4096], op=SUM) by ring where"),
        ({"count": None}, ""),
        ({"caller": "other.py:1"}, ""),
    ],
)
def test_what_makes_calls_differ(flight: Inspector, changed: dict[str, Any], text: str) -> None:
    records = world([call(3)], [call(3, **changed)], [call(3)])
    found, summary = flight.found(records, code=1 if text else 0)
    assert ("calls differ" in found) == bool(text)
    assert text in summary


def test_the_first_difference_of_a_lane_counts(flight: Inspector) -> None:
    found, summary = flight.found(
        world(
            [call(4), call(5), call(6)],
            [call(5, op="MAX"), call(6, op="MIN"), call(7, "waiting", awaits=[0])],
        )
    )
    assert (found["calls differ"]["seq"], found["calls differ"]["ranks"]) == (5, [[1, 1]])
    assert "rank 1 called Allreduce(float64[4096], op=MAX) where rank 0 called" in summary
    assert "call not begun" not in found, "what follows a difference is no news"


def test_a_rank_that_never_began(flight: Inspector) -> None:
    inside = [call(1), call(2, "waiting", awaits=[2])]
    records = [
        record(rank, 3, part(rank, [0, 1, 2], inside), doing="waits in Allreduce") for rank in range(2)
    ]
    records.append(record(2, 3, part(2, [0, 1, 2], [call(1)]), why="SIGUSR2"))
    found, summary = flight.found(records)
    never = found["call not begun"]
    assert (never["communicator"], never["lane"], never["seq"], never["ranks"]) == (
        WORLD,
        "blocking",
        2,
        [[2, 2]],
    )
    assert never["remarks"] == [
        "rank 2: last ended there Allreduce(float64[4096], op=SUM), the 1st, 8.5 s before the record; now in no collective; "
        "record written for SIGUSR2"
    ]
    assert summary.startswith(
        "rank 2 never began Allreduce(float64[4096], op=SUM), the 2nd call on MPI_COMM_WORLD, which ranks 0-1 are in"
    )


def test_a_rank_that_never_began_calls_that_differ(flight: Inspector) -> None:
    usual, odd = call(1, "waiting", awaits=[1]), call(1, "waiting", awaits=[0], op="MAX")
    found, summary = flight.found(world([usual], [odd], [usual], []))
    assert (found["calls differ"]["ranks"], found["call not begun"]["ranks"]) == ([[1, 1]], [[3, 3]])
    assert "where ranks 0, 2 called Allreduce" in summary, "rank 3 called nothing: it is none of the others"
    assert "wait in one call" not in found, "the difference explains it"


def test_dropped_calls_are_not_missed(flight: Inspector) -> None:
    """A call that the ring of a rank may have lost is not one that it never began, unless what it kept is older."""
    flying = call(1, "waiting", lane="in flight 1", awaits=[1], begun=START + 5)
    for oldest, missed in ((6, False), (4, True)):
        records = [
            record(0, 2, part(0, [0, 1], [flying]), doing="waits"),
            record(1, 2, part(1, [0, 1], [call(oldest)], dropped=9)),
        ]
        assert ("call not begun" in flight.found(records)[0]) == missed


CIRCLE = """\
3 records of 3 ranks on 1 host, written within 0 us: train.py --x
  ranks 0-2: SIGUSR2

the 1st call on MPI_COMM_WORLD: not begun by all
              call                              state      caller
  ranks 0, 2  Allreduce(float64[4096], op=SUM)  waiting    train.py:12
  rank 1                                        not begun
  rank 1: no call there has ended; now waits in Barrier at train.py:30, on row; record written for
    SIGUSR2

the 1st call on row: not begun by all
          call       state      caller
  rank 1  Barrier()  waiting    train.py:30
  rank 0             not begun
  rank 0: no call there has ended; now waits in Allreduce, on MPI_COMM_WORLD; record written for
    SIGUSR2

who waits for whom
              waits in                                                      step         for
  ranks 0, 2  Allreduce(float64[4096], op=SUM), 1st call on MPI_COMM_WORLD  row 5 of 14  rank 1
  rank 1      Barrier(), 1st call on row                                                 rank 0

ranks 0 and 1 wait for each other
  rank 0 waits in Allreduce(float64[4096], op=SUM), 1st call on MPI_COMM_WORLD, for rank 1
  rank 1 waits in Barrier(), 1st call on row, for rank 0

ranks 0 and 1 wait for each other: rank 0 in Allreduce(float64[4096], op=SUM), 1st call on
  MPI_COMM_WORLD; rank 1 in Barrier(), 1st call on row
"""


def crossed() -> list[dict[str, Any]]:
    """Rank 0 waits on the world for rank 1, which waits on the row for rank 0; rank 2 waits for rank 1."""
    one = part(0, [0, 1, 2], [call(1, "waiting", awaits=[1], step="row 5 of 14")])
    other = part(1, [0, 1], [call(1, "waiting", awaits=[0], **BARRIER)], name=ROW)
    return [
        record(0, 3, one, part(0, [0, 1], [], name=ROW), doing="waits in Allreduce"),
        record(1, 3, part(1, [0, 1, 2], []), other, doing="waits in Barrier at train.py:30"),
        record(
            2,
            3,
            part(2, [0, 1, 2], [call(1, "waiting", awaits=[1], step="row 5 of 14")]),
            doing="waits in Allreduce",
        ),
    ]


def test_a_circle_across_communicators(flight: Inspector) -> None:
    assert flight.text(crossed()) == CIRCLE
    assert flight.found(crossed())[0]["wait for each other"]["ranks"] == [[0, 1]]


def test_the_end_of_a_chain(flight: Inspector) -> None:
    """Rank 0 waits for 1, which waits on another communicator for 2, which computes."""
    records = [
        record(0, 3, part(0, [0, 1], [call(1, "waiting", awaits=[1])], name="a"), doing="waits"),
        record(
            1,
            3,
            part(1, [0, 1], [], name="a"),
            part(1, [1, 2], [call(1, "waiting", awaits=[1])], name="b"),
            doing="waits in b",
        ),
        record(2, 3, part(2, [1, 2], [], name="b")),
    ]
    found, summary = flight.found(records)
    assert found["who waits for whom"]["ranks"] == [[2, 2]]
    assert found["who waits for whom"]["remarks"][0].startswith(
        "rank 2 waits for nobody known, and ranks 0-1 wait for it: now in no"
    )
    assert summary.startswith("rank 2 never began"), "not rank 1, which is no end of a chain"


def test_calls_in_flight_keep_no_rank_that_is_elsewhere(flight: Inspector) -> None:
    flying = call(1, "waiting", lane="in flight 1", awaits=[1])
    for doing, chained in (("", False), ("waits for a request", True)):
        records = [
            record(0, 2, part(0, [0, 1], [flying]), doing=doing),
            record(1, 2, part(1, [0, 1], [flying | {"awaits": []}])),
        ]
        found, summary = flight.found(records)
        assert ("who waits for whom" in found) == chained
        assert "call not begun" not in found
        assert (
            chained
            or "ranks 0-1 are in Iallreduce(float64[4096], op=SUM), 1st call on MPI_COMM_WORLD (lane 'in flight 1')"
            in summary
        )


def test_a_blocking_call_is_what_a_rank_waits_in(flight: Inspector) -> None:
    calls = [call(1, "waiting", lane="in flight 1", awaits=[1]), call(1, "waiting", awaits=[2])]
    found, _ = flight.found(
        world(calls, [calls[0] | {"awaits": []}, call(1)], [calls[0] | {"awaits": []}], doing="waits")
    )
    assert [row[-1] for row in found["who waits for whom"]["rows"]] == ["rank 2"]


def test_a_circle_across_calls_is_preferred(flight: Inspector) -> None:
    """Ranks 0 and 1 wait for each other in one call, 0 and 2 in two."""
    records = crossed()
    for i, awaits in ((0, [1, 2]), (2, [0])):
        records[i]["communicators"][0]["calls"][0]["awaits"] = awaits
    records[1]["communicators"][0]["calls"] = [call(1, "waiting", awaits=[0])]
    records[1]["communicators"][1]["calls"] = []
    records[2]["communicators"][0]["calls"][0]["seq"] = 2
    assert flight.found(records)[0]["wait for each other"]["ranks"] == [[0, 0], [2, 2]]


def test_a_circle_in_one_call(flight: Inspector) -> None:
    found, summary = flight.found(
        world(*([call(1, "waiting", awaits=[(rank + 1) % 3])] for rank in range(3)), doing="waits")
    )
    assert found["wait in one call"]["ranks"] == [[0, 2]]
    assert summary.startswith(
        "ranks 0-2 wait for each other in Allreduce(float64[4096], op=SUM), 1st call on MPI_COMM_WORLD: messages"
    )


def test_a_rank_without_a_record(flight: Inspector) -> None:
    records = world(
        *([call(1, "waiting", awaits=[2])] for _ in range(4)), doing="waits", why="PeerFailed: rank 2"
    )
    found, summary = flight.found([records[0], records[1], records[3]])
    assert found["left no record"]["ranks"] == [[2, 2]]
    assert summary.startswith("rank 2 left no record: probably dead; ranks 0-1, 3 wait for it in Allreduce")


def test_a_missing_record_that_nobody_waits_for(flight: Inspector) -> None:
    found, summary = flight.found(world([call(1)], [call(1)], [call(1)])[:2])
    assert found["record missing"]["ranks"] == [[2, 2]]
    assert summary.startswith("nothing differs; rank 2 left no record; the largest spread")


def test_all_is_well_but_one_is_late(flight: Inspector) -> None:
    """Call 0, which rank 1 does not know any more, counts for nobody."""
    usual, late = (
        [call(seq) for seq in range(4)],
        [call(1, late=0.01), call(2, late=0.25), call(3, late=0.02)],
    )
    found, summary = flight.found(world(usual, late, [call(0, late=0.4), *usual[1:]]), code=0)
    assert found["lateness"]["rows"] == [
        ["rank 1", "3", "20 ms", "250 ms"],
        *([f"rank {rank}", "3", "0 us", "0 us"] for rank in (0, 2)),
    ]
    assert summary.startswith(
        "nothing differs; the largest spread of begin times is in Allreduce(float64[4096], op=SUM), the 2nd call on"
    )
    assert summary.endswith("which rank 1 began last, 250 ms after the first")


def test_communicators_of_one_name_are_told_apart(flight: Inspector) -> None:
    """And of differences on both, the earlier one is told."""
    ours = (([0, 1], 5), ([1, 0], 3))
    records = [
        record(rank, 2, *(part(rank, ranks, [call(seq, op=str(rank))]) for ranks, seq in ours))
        for rank in range(2)
    ]
    assert flight.found(records)[1].endswith("their 3rd call on MPI_COMM_WORLD (no. 2)")


def test_ranks_of_another_program(flight: Inspector) -> None:
    """In a communicator that was merged with one of theirs: shown as such, and nothing else is lost."""
    undefined = -32766
    merged = [
        part(rank, [0, 1, undefined, undefined], [call(1, "waiting", awaits=[2, 3])], name="merged")
        for rank in range(2)
    ]
    found, summary = flight.found(
        [record(rank, 2, part(rank, [0, 1], [call(1)]), merged[rank], doing="waits") for rank in range(2)]
    )
    assert [row[-1] for row in found["who waits for whom"]["rows"]] == ["ranks of another program"]
    assert summary == "nothing differs; ranks 0-1 wait for ranks of another program"


def test_a_rank_of_this_program_where_there_are_others(flight: Inspector) -> None:
    """All hangs on rank 1, which waits for nobody, and on ranks that nothing is known of."""
    merged = [
        part(rank, [0, 1, -1], [call(1, "waiting", awaits=[1, 2])][rank:], name="merged") for rank in range(2)
    ]
    found, summary = flight.found(
        [record(rank, 2, merged[rank], doing="waits" * (1 - rank)) for rank in range(2)]
    )
    assert found["who waits for whom"]["ranks"] == [[1, 1]]
    assert found["who waits for whom"]["rows"][0][-1] == "rank 1 and ranks of another program"
    assert summary.startswith(
        "rank 1 never began Allreduce(float64[4096], op=SUM), the 1st call on merged, which rank 0 is in"
    )


def test_columns_without_content_are_left_out() -> None:
    assert grid([["", "call", "caller"], ["rank 3", "Barrier()", ""]]) == [
        "          call",
        "  rank 3  Barrier()",
    ]
