"""The judgement of waits: the right rank is named, with its cause; none where all are late in turns."""

import random
import tracemalloc
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hpcoll.analysis.waits import PlaceWaits, RankWaits, judge

RUN_S, CALLS = 10.0, 1000


def waits(rank: int, nranks: int, awaited: Mapping[int, float], **others: Any) -> RankWaits:
    """Waits of a rank in calls in which all ranks wait for the last one, with `awaited` seconds by rank."""
    caused = {owner: seconds / (nranks - 1) for owner, seconds in awaited.items()}
    fields: dict[str, Any] = {
        "host": f"node{rank}",
        "run_s": RUN_S,
        "calls": CALLS,
        "uncompared": 0,
        "waited_s": sum(awaited.values()),
        "moved_s": 0.5,
        "hidden_s": 0.0,
        "python_s": 0.01,
        "nbytes": 8 * CALLS,
        "inherited": {},
        "taken_s": 0.0,
        "absent_s": 0.0,
        "computed_s": 8.0,
        "places": (),
        "clock_error_s": 0.0,
    }
    held_up_by = dict.fromkeys(awaited, CALLS // nranks)
    return RankWaits(rank=rank, held_up_by=held_up_by, waited_for=awaited, caused=caused, **(fields | others))


def late(
    nranks: int, culprit: int, seconds: float = 1.0, noise: float = 0.05, last: int = 0, **cause: float
) -> list[RankWaits]:
    """Waits of ranks that all wait so many seconds for one, which differs from them in ``cause``, and a little for each other.

    It comes last in ``last`` calls, or as often as the others.
    """
    found = []
    for rank in range(nranks):
        awaited = {owner: noise for owner in range(nranks) if owner != rank} | (
            {} if rank == culprit else {culprit: seconds}
        )
        one = waits(rank, nranks, awaited, **(cause if rank == culprit else {}))
        found.append(
            one._replace(held_up_by={**one.held_up_by, culprit: last}) if last and rank != culprit else one
        )
    return found


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ({"computed_s": 9.0}, "computed longer"),
        ({"absent_s": 0.9}, "slept, or was stopped"),
        ({"taken_s": 1.9, "last": 900}, "had its core taken away"),
    ],
)
def test_a_late_rank_is_named_with_its_cause(cause: dict[str, Any], words: str) -> None:
    """What a rank has spent outside of collectives beyond the others says why it was late; it costs what others waited on average."""
    found = judge(late(8, 6, **cause))
    assert found.worst == 6
    assert words in found.rows[6].why
    assert words in found.verdict
    assert found.rows[6].caused_s == pytest.approx(1.0)
    assert found.rows[6].share == pytest.approx(0.1)
    assert not any(row.why for row in found.rows if row.rank != 6)


def test_of_two_ranks_the_other_is_the_comparison() -> None:
    """One of two stands out only where the other costs far less."""
    assert judge(late(2, 1, noise=0.1)).worst == 1
    assert judge(late(2, 1, seconds=1.0, noise=0.6)).worst is None


def test_two_late_ranks_of_many_do_not_hide_each_other() -> None:
    """The comparison is not the next rank where there are many."""
    found = late(12, 3)
    both = [one._replace(caused={**one.caused, 7: one.caused.get(3, 1 / 11) * 0.9}) for one in found]
    assert judge(both).worst == 3


def test_no_rank_is_named_where_each_is_last_in_turns() -> None:
    """Waits that a busy machine spreads over all ranks name none, and what takes the time is said: 100 drawn runs of 2 to 8 ranks."""
    draw, named = random.Random(39), 0
    for _ in range(100):
        nranks = draw.randint(2, 8)
        heavy = [sum(draw.paretovariate(2.0) for _ in range(200)) / 200 for _ in range(nranks)]
        ranks = [
            waits(rank, nranks, {o: cost for o, cost in enumerate(heavy) if o != rank}, taken_s=2.0)
            for rank in range(nranks)
        ]
        named += judge(ranks).worst is not None
    assert named <= 5
    found = judge([one._replace(moved_s=20.0) for one in ranks])
    assert found.verdict.startswith("no rank stands out; ")
    assert "is moving data" in found.verdict


def test_a_core_that_was_taken_away_is_the_cause() -> None:
    """A rank that had no core for longer than the others is late because of that."""
    found = judge(late(4, 2, taken_s=1.0))
    assert (found.worst, found.rows[2].why) == (2, "had its core taken away")


@pytest.mark.parametrize(
    ("computed_s", "taken_s", "words"),
    [
        (0.25, 3.7, "computed longer"),
        (0.12, 3.7, "had its core taken away"),
        (0.12, 2.3, "computed or waited for its core: the machine was busy"),
        (0.25, 6.7, "computed or waited for its core: the machine was busy"),
    ],
)
def test_on_a_busy_machine_who_computes_longer_waits_longer_for_a_core(
    computed_s: float, taken_s: float, words: str
) -> None:
    """The others compute 0.1 s and wait 1.5 s for cores meanwhile: of a rank that computes 2.5 times as long nobody took the core away."""
    ranks = [one._replace(computed_s=0.1, taken_s=1.5) for one in late(3, 1, seconds=1.0)]
    ranks[1] = ranks[1]._replace(computed_s=computed_s, taken_s=taken_s)
    found = judge(ranks)
    assert (found.worst, found.rows[1].why) == (1, words)
    assert found.verdict.endswith(f": it {words}")


def test_ranks_that_held_each_other_up_are_not_each_others_reason() -> None:
    """Each of two was held up by the other one: nobody is named, in a circle of any length, and who leads into it names who is in it."""
    turns = "was held up in other collectives, where ranks waited for each other in turns"
    both = [waits(rank, 2, {1 - rank: 2.0}, inherited={1 - rank: 2.0}) for rank in range(2)]
    assert [row.why for row in judge(both).rows] == [turns, turns]
    assert [row.why for row in judge(chain(closed=True)).rows] == [turns] * 4
    behind = [*chain(closed=True), waits(4, 2, {0: 0.9}), waits(5, 2, {4: 1.0}, inherited={4: 1.0})]
    assert [row.why for row in judge(behind).rows][:5] == [
        *[turns] * 4,
        "was held up in other collectives, most by rank 0",
    ]


def test_very_many_ranks_take_room_for_the_waits_that_there_are() -> None:
    """Not for all pairs of ranks: four times as many ranks take four times as much."""

    def peak(nranks: int) -> int:
        ranks = [
            waits(rank, nranks, {0: 1.0} if rank else {}, computed_s=9.0 if rank % 2 else 8.0)
            for rank in range(nranks)
        ]
        tracemalloc.start()
        judge(ranks)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(10)
    assert peak(1600) < 6 * peak(400)


def test_one_long_delay_is_found() -> None:
    """A second in one call of thousands stands out, and the place where the others waited is said."""
    place = PlaceWaits("train.py:88", "halo", 1, 1.0, 0.0, {1: 1.0})
    ranks = late(4, 1, seconds=1.0, noise=0.02, last=1, absent_s=1.0)
    found = judge([one if one.rank == 1 else one._replace(places=(place,)) for one in ranks])
    assert found.worst == 1
    assert "most at train.py:88 (halo)" in found.verdict
    assert found.places[0].most_for == 1
    assert found.places[0].waited_s == pytest.approx(1.0)


def test_a_very_slow_link_goes_before_ranks() -> None:
    """What comes late over it makes others late; a link that is a little slower does not hide a late rank."""
    ranks = [one._replace(moved_s=2.0) for one in late(4, 1)]
    found = judge(ranks, {"node0": 1.0, "node1": 1.0, "node2": 1.0, "node3": 30.0})
    assert found.worst is None
    assert "the link of node3 is 30.0 times slower" in found.verdict
    assert judge(ranks, {"node0": 1.0, "node1": 1.0, "node2": 1.0, "node3": 2.0}).worst == 1


def chain(*, closed: bool = False) -> list[RankWaits]:
    """Waits of 4 ranks: 0 is late for 1 in their communicator, 1 therefore for 2 in theirs, 2 for 3; ``closed``: and 0 therefore for 1."""
    found = [waits(rank, 2, {rank - 1: 1.0} if rank else {}) for rank in range(4)]
    for rank in (2, 3):
        found[rank] = found[rank]._replace(inherited={rank - 1: 1.0})
    if closed:
        found[0] = waits(0, 2, {3: 1.0}, inherited={3: 1.0})
        found[1] = found[1]._replace(inherited={0: 1.0})
    return [one._replace(moved_s=0.0) for one in found]


def test_the_root_of_a_chain_of_communicators_is_blamed_once() -> None:
    """Ranks that were late because they had waited elsewhere cost nothing; the first one costs its delay, not thrice that."""
    found = judge(chain())
    assert found.worst == 0
    assert [row.caused_s for row in found.rows] == pytest.approx([1.0, 0.0, 0.0, 0.0])
    assert [row.inherited_s for row in found.rows] == pytest.approx([0.0, 1.0, 1.0, 0.0])
    assert found.rows[2].why == "was held up in other collectives, most by rank 1"


def test_what_was_inherited_reaches_the_root_where_few_waited_for_it() -> None:
    """A rank for which one of many waited, which then held up all, costs what it was for all; what moved data is nobody's."""
    found = chain()
    found[1] = found[1]._replace(caused={0: 0.2})
    assert judge(found).rows[0].caused_s == pytest.approx(1.0)
    found[1] = found[1]._replace(moved_s=1.0)
    assert judge(found).rows[0].caused_s == pytest.approx(0.5)


def test_a_circle_of_blame_ends() -> None:
    """Ranks each of which was late because of the next have no root, and nobody is named."""
    found = judge(chain(closed=True))
    assert found.worst is None
    assert sum(row.caused_s for row in found.rows) == pytest.approx(0.0)


def test_less_than_the_error_of_the_clocks_is_no_finding() -> None:
    """Lateness that the clocks of the hosts may have made up names none, and the verdict says that."""
    ranks = late(4, 2, last=CALLS)
    assert judge(ranks).worst == 2
    unsure = [one._replace(clock_error_s=0.97e-3) for one in ranks]
    assert judge(unsure).worst is None
    assert "what rank 2 cost is within the error of the clocks" in judge(unsure).verdict


def test_a_slow_link_is_said_to_be_the_cause() -> None:
    """A rank that is late without having spent the time itself is so by its link; where it computed longer, that is the cause."""
    assert judge(late(4, 2), {"node2": 3.0}).verdict.endswith(
        "it has a link 3.0 times slower than the median"
    )
    assert judge(late(4, 2, computed_s=9.0), {"node2": 3.0}).rows[2].why == "computed longer"
    assert (
        "the link of node1 is 2.0 times slower"
        in judge(late(4, 2, seconds=0.0), {"node1": 2.0, "node2": 1.0}).verdict
    )


@pytest.mark.parametrize(
    "ranks",
    [[], late(1, 0), [one._replace(calls=0, run_s=0.0, waited_s=0.0) for one in late(3, 0, 0.0, 0.0)]],
)
def test_nothing_to_judge_is_no_finding(ranks: Sequence[RankWaits]) -> None:
    """Programs that made no calls, or have one rank, get a value and a text as well."""
    found = judge(ranks)
    assert found.worst is None
    assert str(found).startswith(found.verdict)


def test_the_table_shows_the_worst_first_and_counts_the_rest() -> None:
    """Of very many ranks some are shown; texts of the program are made fit for a terminal."""
    lines = str(judge([one._replace(host="a\x1b[31m") for one in late(40, 33, computed_s=9.0)])).splitlines()
    assert lines[3].split()[:2] == ["rank", "host"]
    assert lines[4].split()[0] == "33"
    assert lines[-1].startswith("and 24 other ranks")
    assert all(line.isprintable() for line in lines)
    place = PlaceWaits("a.py:1", "", 1, 0.1, 0.0, {})
    many = judge(
        [one._replace(places=[place._replace(region=f"r{i}") for i in range(20)]) for one in late(2, 0)]
    )
    assert str(many).endswith("and 4 other places, where ranks waited less")
