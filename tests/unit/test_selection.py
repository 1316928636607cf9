"""Settings from the environment, and which algorithm serves a call: forced ones refused with a reason, the rest by the model."""

import itertools
import logging
from typing import Any

import pytest

from hpcoll.base.errors import ArgumentError
from hpcoll.schedules.catalogue import CATALOGUE, find
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.selection.choice import MAX_NATIVE_NBYTES
from hpcoll.selection.choose import Choice, Need, choose, fitting, unfit
from hpcoll.selection.config import NATIVE, Config, check_algorithm, positive_segment, read_config

DEFAULTS = Config()
# collectives whose v forms leave sizes unknown to some ranks
UNKNOWN_SIZES = (
    "gather",
    "scatter",
    "alltoall",
)


def need(collective: str = "allreduce", nranks: int = 8, nbytes: int | None = 1 << 20, **more: Any) -> Need:
    return Need(collective, nranks, nbytes, **more)


# --- the environment


def test_an_empty_environment_is_the_defaults() -> None:
    assert (
        read_config({})
        == read_config({"PATH": "/bin", "hpcoll_debug": "x"})
        == DEFAULTS
        == Config({}, None, logging.WARNING)
    )


@pytest.mark.parametrize(
    ("text", "level"),
    [("warn", logging.WARNING), ("WARN", logging.WARNING), ("Info", logging.INFO), ("trace", logging.DEBUG)],
)
def test_levels(text: str, level: int) -> None:
    assert read_config({"HPCOLL_DEBUG": text}).level == level


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("HPCOLL_ALLREDUCE", "rings", "allreduce algorithm must be one of ring, .*, got 'rings'"),
        ("HPCOLL_BCAST", "ring", "bcast algorithm must be one of binomial, .*, got 'ring'"),
        (
            "HPCOLL_BARRIER",
            "",
            "barrier algorithm must be one of dissemination, hierarchical, native, got ''",
        ),
        ("HPCOLL_SEGMENT", "much", "size must be a number of bytes such as 8, 64K or 1.5M, got 'much'"),
        ("HPCOLL_SEGMENT", "0", "segment must be at least 1 byte, got '0'"),
        ("HPCOLL_SEGMENT", "0.5", "segment must be at least 1 byte, got '0.5'"),
        ("HPCOLL_METRICS", " ", "expected the name of a file or folder, got ''"),
        ("HPCOLL_TRACE", "traces:step", "expected a folder, or folder:steps, got 'traces:step'"),
        ("HPCOLL_TRACE", ":steps", "expected a folder, or folder:steps, got ':steps'"),
        ("HPCOLL_SHM", "lots", "size must be a number of bytes such as 8, 64K or 1.5M, got 'lots'"),
        ("HPCOLL_SHM_RANKS", "0", "number of ranks must be from 1 to 2147483647, got '0'"),
        ("HPCOLL_SHM_RANKS", "all", ".*, got 'all'"),
        ("HPCOLL_DOMAINS", "0", "ranks per cache domain must look like 8 or 3\\+1\\+4, got '0'"),
        (
            "HPCOLL_DOMAINS",
            "2:cyclic",
            "ranks per cache domain must look like 8 or 3\\+1\\+4, got '2:cyclic'",
        ),
        ("HPCOLL_CUDA_PATH", "nvlink", "expected one of direct, ipc, staged, host, device, got 'nvlink'"),
        ("HPCOLL_DEBUG", "debug", "level must be one of WARN, INFO, TRACE, got 'debug'"),
        *(
            ("HPCOLL_SHM_RANKS", value, f".*, got '{value}'$")
            for value in ("²", "٣", "1e3", "1_0", "2147483648", "9223372036854775807")
        ),
        *(("HPCOLL_TIMEOUT", value, f".*, got '{value}'$") for value in ("nan", "inf", "1e999", "-1")),
    ],
)
def test_values_that_mean_nothing_are_refused_by_name(name: str, value: str, text: str) -> None:
    with pytest.raises(ArgumentError, match=f"^environment variable {name}: {text}"):
        read_config({name: value})


def test_unknown_names_are_kept_to_be_warned_about() -> None:
    config = read_config({"HPCOLL_ALLREDUCEV": "ring", "HPCOLL_ALGO": "ring", "HPCOLLX": "1"})
    assert config.unknown == {"HPCOLL_ALGO", "HPCOLL_ALLREDUCEV"}
    assert config.agreement() == DEFAULTS.agreement()


def test_what_ranks_must_agree_on() -> None:
    one = read_config(
        {"HPCOLL_SCAN": NATIVE, "HPCOLL_ALLREDUCE": "ring", "HPCOLL_SEGMENT": "64K", "HPCOLL_DEBUG": "info"}
    )
    assert one.agreement() == Config({"allreduce": "ring", "scan": NATIVE}, 65536).agreement()
    assert (
        one.agreement() != Config({"allreduce": "ring", "scan": NATIVE}).agreement() != DEFAULTS.agreement()
    )
    tuned = read_config({"HPCOLL_TUNING": " some/table.json "})
    assert tuned == Config(tuning="some/table.json")
    assert tuned.agreement() == {"HPCOLL_TUNING": "some/table.json"}
    assert DEFAULTS.agreement() == {}


def test_shared_memory_is_limited_in_bytes_and_in_ranks_and_split_into_domains() -> None:
    assert (DEFAULTS.shm, DEFAULTS.shm_ranks) == (None, None)
    assert read_config({"HPCOLL_SHM": " 1.5G ", "HPCOLL_SHM_RANKS": "4"}) == Config(shm=3 << 29, shm_ranks=4)
    assert read_config({"HPCOLL_CUDA_PATH": "ipc "}) == Config(cuda_path="ipc")
    assert read_config({"HPCOLL_SHM": "0"}) == Config(shm=0)
    assert read_config({"HPCOLL_DOMAINS": " 3+1 "}) == Config(domains=(3, 1))
    numbers = [Config(**{field: n}) for field in ("shm", "shm_ranks") for n in (1, 2)]
    settings = [DEFAULTS, Config(shm=0), *numbers, Config(domains=(2,)), Config(domains=(3, 1))]
    assert len({str(config.agreement()) for config in settings}) == len(settings)


def test_keywords_are_checked_like_the_environment() -> None:
    check_algorithm("allreduce", NATIVE)
    assert (positive_segment("64K"), positive_segment(1)) == (65536, 1)
    with pytest.raises(ArgumentError, match="segment must be at least 1 byte, got 0"):
        positive_segment(0)
    with pytest.raises(ArgumentError, match=r"collective must be one of allgather, .*, got 'allreducev'"):
        check_algorithm("allreducev", "ring")


# --- forced


def test_the_keyword_is_stronger_than_the_environment() -> None:
    config = Config({"allreduce": "tree"}, segment=100)
    assert choose(need(), config)[:2] == ("tree", 100)
    assert choose(need(), config, "ring")[:2] == ("ring", 100)
    assert choose(need(), config, "ring", 7)[:2] == ("ring", 7)
    assert choose(need("bcast"), config).segment == 100
    assert choose(need(), config, NATIVE)[:2] == (NATIVE, 100)
    assert choose(need(), DEFAULTS, "ring").why == "algorithm='ring'"


@pytest.mark.parametrize(
    ("wanted", "algorithm", "reason"),
    [
        (need(ordered=True), "ring", "it combines ranks in any order and the operator is not commutative"),
        (need("alltoall", varying=True), "bruck", "it needs equal blocks"),
        (need(native=False), NATIVE, "the MPI library does not know this operator, element type or form"),
    ],
)
def test_a_forced_algorithm_that_cannot_serve_is_refused_with_a_reason(
    wanted: Need, algorithm: str, reason: str
) -> None:
    for config, keyword in ((DEFAULTS, algorithm), (Config({wanted.collective: algorithm}), None)):
        with pytest.raises(ArgumentError) as caught:
            choose(wanted, config, keyword)
        assert str(caught.value) == f"{wanted.collective}/{algorithm} cannot serve this call: {reason}"
    assert algorithm not in fitting(wanted)


def test_a_forced_algorithm_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"allreduce algorithm must be one of ring, .*, got 'bruck'"):
        choose(need(), DEFAULTS, "bruck")


# --- chosen by the model

GRID = list(
    itertools.product(COLLECTIVES, (1, 2, 3, 8, 13, 100, 24_756), (0, 1, 8, 4096, 1 << 16, 1 << 20, 1 << 33))
)
FLAGS = [
    dict(zip(("ordered", "varying", "native", "strict"), flags))
    for flags in itertools.product((False, True), repeat=4)
]


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(flags, id="-".join(name for name, on in flags.items() if on) or "plain", marks=marks)
        for flags in FLAGS
        for marks in [pytest.mark.full if 2 <= sum(flags.values()) <= 3 else ()]
    ],
)
def test_the_choice_fits_is_reproducible_and_cuts_within_the_message(
    flags: dict[str, bool], short: bool
) -> None:
    seen = set()
    for collective, nranks, nbytes in GRID[:: 3 if short else 1]:
        has_operator = COLLECTIVES[collective].reduces and not COLLECTIVES[collective].idempotent
        wanted = need(collective, nranks, nbytes, **{**flags, "ordered": flags["ordered"] and has_operator})
        choice = choose(wanted, DEFAULTS)
        seen.add(choice.algorithm)
        assert 1 <= choice.segment <= max(1, nbytes)
        if choice.algorithm == NATIVE:
            assert wanted.native
            assert not wanted.strict
            assert nbytes <= MAX_NATIVE_NBYTES
        else:
            assert find(collective, choice.algorithm).reproducible
            assert nranks == 1 or choice.algorithm in fitting(wanted)
    assert (NATIVE in seen) == (flags["native"] and not flags["strict"])


def test_a_set_segment_leaves_the_choice_alone() -> None:
    free = choose(need(), DEFAULTS)
    assert choose(need(), Config(segment=12)) == free._replace(segment=12)
    assert choose(need(), DEFAULTS, segment=13) == free._replace(segment=13)


@pytest.mark.parametrize("collective", UNKNOWN_SIZES)
def test_sizes_that_only_some_ranks_know_decide_nothing(collective: str) -> None:
    for nranks in (1, 2, 100):
        choice = choose(need(collective, nranks, None, varying=True), DEFAULTS)
        assert choice == Choice("direct", 1, "sizes differ between ranks")
        assert not unfit(need(collective, nranks, None, varying=True), choice.algorithm)


def test_large_messages_go_by_least_volume_and_small_ones_by_fewest_rounds() -> None:
    large = choose(need(nbytes=1 << 28, strict=True), DEFAULTS)
    small = choose(need(nranks=64, nbytes=8, strict=True), DEFAULTS)
    assert CATALOGUE[f"allreduce/{large.algorithm}"].cost("sent", 8) == 2 * 7 / 8
    assert CATALOGUE[f"allreduce/{small.algorithm}"].cost("rounds", 64) <= 6


def test_what_fits_is_listed_with_native_last() -> None:
    in_order = [row.name for row in CATALOGUE.values() if row.collective == "allreduce" and row.ordered]
    assert fitting(need(ordered=True)) == [*in_order, NATIVE]
    assert NATIVE not in fitting(need(native=False))
    assert set(fitting(need("scan", ordered=True))) == {"recursive_doubling", "direct", NATIVE}


def test_gpu_arrays_never_go_to_the_library() -> None:
    need = Need("allreduce", 4, 8, gpu=True)
    assert choose(need, Config()).algorithm != "native"
    with pytest.raises(ArgumentError, match="native cannot serve this call: the arrays are in GPU memory"):
        choose(need, Config(), "native")


# --- order="rank"


@pytest.mark.parametrize("collective", ["allreduce", "reduce", "reduce_scatter", "scan", "exscan"])
@pytest.mark.parametrize("nranks", [1, 2, 3, 6, 8, 33])
def test_an_order_is_kept_by_what_is_chosen(collective: str, nranks: int) -> None:
    """Of any size, wherever ranks are, and never by the MPI library; the cheapest of those that keep it."""
    pairs, spread = tuple(rank // 2 for rank in range(nranks)), tuple(rank % 3 for rank in range(nranks))
    places: list[dict[str, Any]] = [{"one_node": True}, {}, {"nodes": pairs}, {"nodes": spread}]
    for nbytes in (8, 1 << 15, 1 << 24):
        for more in places:
            wanted = need(collective, nranks, nbytes, canonical=True, **more)
            choice = choose(wanted, DEFAULTS)
            assert CATALOGUE[f"{collective}/{choice.algorithm}"].is_canonical(nranks, wanted.nodes), (
                nbytes,
                more,
                choice,
            )
    assert NATIVE not in fitting(wanted)


@pytest.mark.parametrize("algorithm", ["ring", NATIVE])
def test_what_keeps_no_order_is_refused_and_others_are_named(algorithm: str) -> None:
    for config, keyword in ((DEFAULTS, algorithm), (Config({"allreduce": algorithm}), None)):
        with pytest.raises(
            ArgumentError, match=r"which order='rank' asks for; these can: .*direct, .*two_shot"
        ) as caught:
            choose(need(canonical=True), config, keyword)
        assert algorithm not in str(caught.value).partition("these can: ")[2].split(", ")


def test_what_is_canonical_where_it_runs_serves_operators_that_are_not_commutative() -> None:
    wanted = need(nranks=4, ordered=True, nodes=(0, 0, 1, 1))
    assert unfit(wanted, "leaders")
    assert not unfit(wanted._replace(canonical=True), "leaders")
    assert unfit(wanted._replace(canonical=True, nodes=(0, 1, 0, 1)), "leaders")


def test_order_in_the_environment() -> None:
    assert read_config({"HPCOLL_ORDER": " rank"}).agreement() == {"HPCOLL_ORDER": "rank"}
    with pytest.raises(
        ArgumentError, match="environment variable HPCOLL_ORDER: expected one of rank, got 'ring'"
    ):
        read_config({"HPCOLL_ORDER": "ring"})
