"""Selection of an algorithm where ranks share nodes or the caches of one, and by a tuning table."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hpcoll.analysis.cost import HOSTS, ONE_HOST, Levels
from hpcoll.cli.simulate.command import NETWORKS
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.placement import Nodes, parse_nodes, parts
from hpcoll.selection.choose import Need, choose, not_chosen
from hpcoll.selection.config import NATIVE, Config, Entry

DEFAULTS = Config()
ROWS = [row for row in CATALOGUE.values() if row.hierarchical]
LAYERED = sorted({row.collective for row in ROWS})
SIZES = (0, 8, 1000, 1 << 14, 1 << 17, 1 << 20, 1 << 24, 1 << 28)
PLACES = ("8", "8:cyclic", "4+4+8", "2")


def need(
    collective: str, nodes: Nodes, nbytes: int | None = 1 << 24, levels: Levels = HOSTS, **more: Any
) -> Need:
    return Need(collective, len(nodes), nbytes, **{"nodes": nodes, "levels": levels, **more})


def names(collective: str, wanted: Iterator[Need]) -> set[str]:
    return {choose(one, DEFAULTS).algorithm for one in wanted}


def every(collective: str, places: tuple[str, ...] = PLACES, **more: Any) -> Iterator[Need]:
    for text, nbytes in itertools.product(places, SIZES):
        yield need(collective, parse_nodes(text, 16), nbytes, **more)


def layered(collective: str) -> set[str]:
    return {row.name for row in ROWS if row.collective == collective}


@pytest.mark.parametrize("collective", LAYERED)
def test_every_hierarchical_row_is_chosen_somewhere(collective: str) -> None:
    assert layered(collective) <= names(collective, every(collective))


@pytest.mark.parametrize(
    ("key", "nranks", "places", "nbytes", "more"),
    [
        ("allreduce/recursive_multiplying", 16, "1", 8, {}),
        ("allreduce/dual_root", 24, "12", 1 << 20, {"ordered": True}),
        ("reduce_scatter/bine", 16, "6", 4096, {}),
        ("reduce_scatter/pat", 33, "8", 1 << 16, {}),
    ],
)
def test_rows_for_some_placements_are_chosen_there_only(
    key: str, nranks: int, places: str, nbytes: int, more: dict[str, bool]
) -> None:
    collective, name = key.split("/")
    levels = NETWORKS["ethernet" if places == "1" else "fast"]
    wanted = need(collective, parse_nodes(places, nranks), nbytes, levels, native=False, **more)
    assert choose(wanted, DEFAULTS).algorithm == name
    assert choose(wanted._replace(one_node=True), DEFAULTS).algorithm != name
    lone = wanted._replace(nodes=tuple(range(nranks)))
    assert (choose(lone, DEFAULTS).algorithm == name) == (places == "1")


def test_large_messages_of_ranks_that_go_round_the_nodes() -> None:
    for collective in ("allreduce", "bcast", "reduce", "allgather", "reduce_scatter"):
        assert (
            choose(need(collective, parse_nodes("8:cyclic", 64), 1 << 28), DEFAULTS).algorithm
            == "hierarchical"
        )


def test_leaders_for_small_sums_and_lanes_for_large_ones() -> None:
    small, large = (
        choose(need("allreduce", parse_nodes("8", 64), nbytes), DEFAULTS).algorithm for nbytes in (8, 1 << 26)
    )
    assert (small, large) == ("leaders", "hierarchical")


# --- cache domains of one node


def on_domains(collective: str, text: str, nbytes: int, nranks: int = 64, **more: Any) -> Need:
    """A call of the ranks of one node, which share memory, on domains."""
    node, domains = (0,) * nranks, parse_nodes(text, nranks)
    levels = ONE_HOST.on_parts(node, domains)
    return need(collective, parts(node, domains), nbytes, **{"levels": levels, "one_node": True, **more})


@pytest.mark.parametrize("text", ["8", "8:cyclic", "40+24", "32"])
@pytest.mark.parametrize(
    "collective", ["allreduce", "bcast", "reduce", "allgather", "reduce_scatter", "alltoall"]
)
def test_64_ranks_on_several_caches_get_a_hierarchy(collective: str, text: str) -> None:
    """At 16 KiB, where latency and bytes across both count; on one cache the same call gets a flat algorithm."""
    assert choose(on_domains(collective, text, 1 << 14, strict=True), DEFAULTS).algorithm == "hierarchical"
    assert choose(on_domains(collective, "64", 1 << 14, strict=True), DEFAULTS).algorithm not in layered(
        collective
    )


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("text", ["64", "1"])
def test_on_one_cache_or_one_each_nothing_changes(collective: str, text: str) -> None:
    """The choice is that of a node of which no domains are known."""
    for nbytes in SIZES:
        assert choose(on_domains(collective, text, nbytes), DEFAULTS) == choose(
            Need(collective, 64, nbytes, one_node=True), DEFAULTS
        )


TUNED = (
    Entry(8, "direct", 8, 2.5, 4.0),
    Entry(4096, "tree", 4096, 12.34, 40.14),
    Entry(1 << 20, "ring", 65536, 1500.0, 2000.0),
)
MOVED = (Entry(8, NATIVE, 8, 1.5, 1.0), Entry(1 << 20, "chain", 1 << 18, 90.0, 95.0))
TABLE = {"f4": {"allreduce": TUNED}, "bytes": {"bcast": MOVED}}


def tuned_need(nbytes: int | None = 4096, collective: str = "allreduce", **more: Any) -> Need:
    return Need(
        collective, 8, nbytes, **{"type_class": "f4" if collective == "allreduce" else "bytes", **more}
    )


def test_the_table_is_stronger_than_the_model() -> None:
    choice = choose(tuned_need(), Config(table=TABLE))
    assert choice == ("tree", 4096, "tuned: 12.3 us against 40.1 us native", "tuned: fastest")
    assert choose(tuned_need(), Config()).why.startswith("model: ")
    assert choose(tuned_need(collective="scan", type_class="f4"), Config(table=TABLE)) == choose(
        tuned_need(collective="scan"), Config()
    )
    why = "tuned: nothing was clearly faster than 1 us native"
    assert choose(tuned_need(8, "bcast"), Config(table=TABLE)) == (NATIVE, 8, why, "tuned: fastest")


def test_keyword_and_environment_are_stronger_than_the_table() -> None:
    config = Config({"allreduce": "double_tree"}, table=TABLE)
    assert choose(tuned_need(), config)[0] == "double_tree"
    assert choose(tuned_need(), config, "ring")[0] == "ring"
    assert choose(tuned_need(), Config(segment=100, table=TABLE))[:2] == ("tree", 100)
    assert choose(tuned_need(), Config(segment=100, table=TABLE), segment=7)[:2] == ("tree", 7)


def test_the_reason_says_which_measurement_it_is() -> None:
    config = Config(table=TABLE)
    assert choose(tuned_need(5000), config).why == "tuned at 4 KiB: 12.3 us against 40.1 us native"
    assert (
        choose(tuned_need(1 << 20, type_class="i8"), config).why
        == "tuned for f4: 1500 us against 2000 us native"
    )
    assert (
        choose(tuned_need(1 << 21, type_class="i8"), config).why
        == "tuned for f4 at 1 MiB: 1500 us against 2000 us native"
    )


@pytest.mark.parametrize(
    ("nbytes", "segment"),
    [(0, 1), (8, 8), (100, 100), (8192, 8192), (1 << 17, 65536), (1 << 30, 65536), (70000, 65536)],
)
def test_a_whole_message_stays_whole_and_a_segment_keeps_its_size(nbytes: int, segment: int) -> None:
    assert choose(tuned_need(nbytes), Config(table=TABLE)).segment == segment


def test_segments_are_not_very_many() -> None:
    """However short those are that a table asks for: the schedules of so many would take hours."""
    config = Config(table={"f4": {"allreduce": (Entry(1 << 20, "ring", 1, 1, 2),)}})
    assert [choose(tuned_need(nbytes), config).segment for nbytes in (1 << 16, 1 << 20, 1 << 30)] == [
        1,
        16,
        16384,
    ]


def test_a_long_whole_message_is_a_segment_for_longer_ones() -> None:
    """Twice as long in one piece, its messages might no longer go at once."""
    config = Config(table={"f4": {"allreduce": (Entry(1 << 17, "two_shot", 1 << 17, 1, 2),)}})
    assert [choose(tuned_need(nbytes), config).segment for nbytes in (1 << 16, 1 << 17, 1 << 18)] == [
        1 << 16,
        1 << 17,
        1 << 17,
    ]


def test_native_is_not_picked_against_a_promise_nor_above_what_it_counts() -> None:
    config = Config(
        table={
            "bytes": {"bcast": MOVED[:1]},
            "f4": {"allreduce": (Entry(8, NATIVE, 8, 1, 2), Entry(8, "tree", 8, 3, 2))},
        }
    )
    choice = choose(tuned_need(strict=True), config)
    assert choice.algorithm == "tree"
    assert choice.why.startswith(
        "tuned at 8 B: 3 us against 2 us native; native, tuned, is passed over: the call gets a promise"
    )
    big, model = (choose(tuned_need(1 << 32, "bcast"), one) for one in (config, Config()))
    assert big[:2] == model[:2] != NATIVE
    assert (
        big.why == f"{model.why}; native, tuned, is passed over: not every MPI library can count the message"
    )
    own = choose(tuned_need(native=False), config)
    assert own.algorithm == "tree"
    assert own.why.endswith(
        "native, tuned, is passed over: the MPI library does not know this operator, element type or form"
    )


def test_what_cannot_serve_is_passed_over_for_the_model() -> None:
    config = Config(
        table={
            "f4": {"allreduce": (Entry(8, "ring", 8, 1, 2),)},
            "bytes": {"alltoall": (Entry(8, "bruck", 8, 1, 2),)},
        }
    )
    for wanted, reason in (
        (
            tuned_need(ordered=True),
            "ring, tuned, is passed over: it combines ranks in any order and the operator is not commutative",
        ),
        (tuned_need(64, "alltoall", varying=True), "bruck, tuned, is passed over: it needs equal blocks"),
    ):
        choice, model = choose(wanted, config), choose(wanted, Config())
        assert choice == model._replace(why=f"{model.why}; {reason}")
        assert not not_chosen(wanted, choice.algorithm)


def test_sizes_that_only_some_ranks_know_and_single_ranks_do_not_ask_the_table() -> None:
    for wanted in (tuned_need(None, "scatter", varying=True), tuned_need()._replace(nranks=1)):
        assert choose(wanted, Config(table=TABLE)) == choose(wanted, Config())


def random_needs() -> Iterator[Need]:
    dice = np.random.default_rng(7)
    for _ in range(300):
        flags = {name: bool(dice.integers(2)) for name in ("ordered", "native", "strict")}
        yield tuned_need(int(dice.integers(1 << 22)), **flags)


def test_no_call_gets_what_cannot_serve_it() -> None:
    names = ("ring", NATIVE, "direct", "circulant", "tree")
    entries = tuple(Entry(1 << 2 * i, name, 8, 1.0, 1.0) for i in range(11) for name in names[i % 5 :][:2])
    picked = set()
    for wanted in random_needs():
        choice = choose(wanted, Config(table={"f4": {"allreduce": entries}}))
        assert not not_chosen(wanted, choice.algorithm)
        picked.add((choice.algorithm, choice.why[:5]))
    assert {(name, "tuned") for name in names} <= picked
