"""The choice of algorithm and segments for a call: forced, measured, or the cheapest by the cost model.

It depends only on values that all ranks of a call know alike. ``native`` takes part: the model takes it for a good algorithm without
segments, with the constants of the MPI library. A choice is made at every power of two and at every size in the tuning table. It holds up
to the next of these, so that calls of ever new sizes need no choices of their own.
"""

import math
from bisect import bisect_right
from functools import lru_cache
from typing import NamedTuple

from hpcoll.analysis import cost as model
from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.base.text import MAX_CHUNKS, format_nbytes
from hpcoll.schedules.catalogue import CATALOGUE, PACKAGE, algorithms, find
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.placement import members
from hpcoll.schedules.row import Algorithm, unserved
from hpcoll.selection.choice import Choice, Need, not_chosen, unfit
from hpcoll.selection.config import NATIVE, PREFIX, Config, Entry, Table, check_algorithm, log

# Algorithms that the MPI library is expected to use between hosts, without segments.
NATIVE_ROWS = {
    "allreduce": ("recursive_doubling", "rabenseifner"),
    "bcast": ("binomial",),
    "reduce": ("binomial",),
    "allgather": ("circulant",),
    "reduce_scatter": ("circulant",),
    "gather": ("binomial", "direct"),
    "scatter": ("binomial", "direct"),
    "alltoall": ("pairwise", "bruck"),
    "scan": ("recursive_doubling",),
    "exscan": ("recursive_doubling",),
    "barrier": ("dissemination",),
    "neighbor_allgather": ("direct",),
    "neighbor_alltoall": ("direct",),
}
CHUNK_NBYTES = 32 << 10  # of a pipeline in shared memory
GPU_CHUNK_NBYTES = 2 << 20  # of a pipeline between GPUs
MIN_SEGMENT = 8 << 10  # bytes, of `candidates`
MOST_DERIVED = (
    128  # ranks for which costs of registered rows are derived to choose among them: 0.3 s for a ring
)
_POWERS = 40  # of two, at which choices are made


def choose(need: Need, config: Config, algorithm: str | None = None, segment: int | None = None) -> Choice:
    """Choose for a call: by keyword, else by environment variable, else by tuning table, else by cost model.

    ``algorithm`` and ``segment``, bytes, are keywords of the call, or None. ArgumentError: the forced algorithm does not exist or cannot
    serve the call.
    """
    forced = config.algorithms.get(need.collective) if algorithm is None else algorithm
    segment = segment or config.segment
    if forced is not None:
        check_algorithm(need.collective, forced)
        reason = unfit(need, forced)
        if reason:
            others = f"; these can: {', '.join(fitting(need)) or 'none'}" if need.canonical else ""
            raise ArgumentError(f"{need.collective}/{forced} cannot serve this call: {reason}{others}")
        why = (
            f"algorithm={forced!r}"
            if algorithm is not None
            else f"{PREFIX}{need.collective.upper()}={forced}"
        )
        return Choice(forced, segment or modelled_segment(need, forced), why)
    choice = _measured(need, config.table)
    return choice._replace(segment=segment) if segment else choice


def _measured(need: Need, table: Table) -> Choice:
    """Choose by the tuning table; by the model where the table has nothing that can serve the call."""
    if need.nbytes is None or need.nranks < 2 or not table:
        return _cheapest(need)
    from hpcoll.selection.tuning import lookup

    name, entries = lookup(table, need.type_class, need.collective, need.nbytes)
    over = ""
    for entry in entries:
        reason = not_chosen(need, entry.algorithm)
        if not reason:
            # longer ones do not get longer than they were measured
            whole = entry.segment >= entry.nbytes < model.SEGMENTS[0]
            segment = (
                need.nbytes if whole else max(min(entry.segment, need.nbytes), need.nbytes // MAX_CHUNKS)
            )
            return Choice(entry.algorithm, max(1, segment), _why(need, name, entry) + over, "tuned: fastest")
        over += f"; {entry.algorithm}, tuned, is passed over: {reason}"
    choice = _cheapest(need)
    return choice._replace(why=choice.why + over)


def _why(need: Need, type_class: str, entry: Entry) -> str:
    where = (
        ("" if type_class == need.type_class else f" for {type_class}")
        + ("" if entry.nbytes == need.nbytes else f" at {format_nbytes(entry.nbytes)}")
        + (" while other programs used the cores" if entry.disturbed else "")
    )
    if entry.algorithm == NATIVE:
        return f"tuned{where}: nothing was clearly faster than {_us(entry.native_us)} native"
    return f"tuned{where}: {_us(entry.us)} against {_us(entry.native_us)} native"


def _us(us: float) -> str:
    return f"{us:.3g} us" if us < 1000 else f"{us:.0f} us"


def modelled_segment(need: Need, algorithm: str) -> int:
    """Return the bytes per segment that the model prefers for an algorithm."""
    if algorithm == NATIVE or need.nbytes is None or not _has_costs(_row(need, algorithm), need):
        return max(1, need.nbytes or 0)
    return _seconds(need, _row(need, algorithm))[1]


def _seconds(need: Need, row: Algorithm) -> tuple[float, int]:
    """Return modelled seconds and the best segment; in shared memory lanes cut the message anyway, so it is mostly the whole one."""
    assert need.nbytes is not None
    if not need.one_node:
        return best_modelled(need, row)
    if need.gpus:
        segment = max(1, min(GPU_CHUNK_NBYTES, need.nbytes) if row.chunked else need.nbytes)
        return model.predict_on_gpus(row, need.gpus, need.nbytes).seconds, segment
    chunk, network = (
        (GPU_CHUNK_NBYTES, model.GPU_NETWORK) if need.gpu else (CHUNK_NBYTES, model.SHARED_NETWORK)
    )
    segment = min(chunk, need.nbytes) if row.chunked else need.nbytes
    # messages that several ranks read are staged once, and no sharers were measured here
    row = row._replace(
        critical=row.shared or row.critical, sharers="", messages="0" if row.hierarchical else row.messages
    )
    if _has_domains(need):
        return model.seconds_on_nodes(row, need.nodes, need.nbytes, max(1, segment), need.levels), max(
            1, segment
        )
    return model.seconds(row, need.nranks, need.nbytes, max(1, segment), network), max(1, segment)


def _has_domains(need: Need) -> bool:
    return need.one_node and not need.gpu and len(members(need.nodes)) > 1


def best_modelled(need: Need, row: Algorithm) -> tuple[float, int]:
    """Return the modelled seconds of a row and the best segment, where not all ranks share memory."""
    assert need.nbytes is not None
    nodes = need.nodes or tuple(range(need.nranks))
    return model.best_segment(
        row, nodes, need.nbytes, need.levels.network.eager, lambda segment: modelled(need, row, segment)
    )


def modelled(need: Need, row: Algorithm, segment: int) -> float:
    """Return the modelled seconds of a row with segments of ``segment`` bytes, where not all ranks share memory."""
    assert need.nbytes is not None
    levels, nodes = need.levels, need.nodes or tuple(range(need.nranks))
    if need.gpu:
        levels = levels._replace(
            network=levels.network._replace(alpha=max(levels.network.alpha, model.GPU_NETWORK.alpha))
        )
    return model.seconds_on_nodes(row, nodes, need.nbytes, segment, levels)


@lru_cache(maxsize=4096)
def _cheapest(need: Need) -> Choice:
    if need.nbytes is None:  # no rank may decide by what only some ranks know
        return Choice("direct", 1, "sizes differ between ranks")
    if need.nranks < 2:
        return Choice(algorithms(need.collective)[0], max(1, need.nbytes), "one rank")
    costs = []
    for row in (row for row in _rows(need) if may_be_chosen(row, need)):
        cost, segment = _seconds(need, row)
        costs.append((cost, row.name, segment))
    if not not_chosen(need, NATIVE):
        costs.append((_native_seconds(need), NATIVE, max(1, need.nbytes)))
    if not costs:
        raise ArgumentError(f"no algorithm of {need.collective} serves this call on {need.nranks} ranks")
    # of two alike the one that is checked
    cost, name, segment = min(costs, key=lambda candidate: (candidate[0], candidate[1] == NATIVE, candidate))
    if need.gpu:  # of those alike, one with the fewest rounds
        rounds = {name: find(need.collective, name).cost("rounds", need.nranks) for _, name, _ in costs}
        cost, name, segment = min(
            (candidate for candidate in costs if candidate[0] <= model.ALIKE * cost),
            key=lambda candidate: (rounds[candidate[1]], candidate),
        )
    if not need.one_node:  # of those alike, one whose ranks have two peers each: links that carry one stream are easier to keep busy
        alike = (
            candidate
            for candidate in costs
            if candidate[0] <= model.ALIKE * cost
            and candidate[1] != NATIVE
            and find(need.collective, candidate[1]).neighbours
        )
        cost, name, segment = min(alike, default=(cost, name, segment))
    return Choice(
        name,
        segment,
        f"model: {cost * 1e6:.3g} us for {format_nbytes(need.nbytes)} on {need.nranks} ranks",
        "model: fastest",
    )


def _rows(need: Need) -> list[Algorithm]:
    rows = [row for row in CATALOGUE.values() if row.key in PACKAGE and row.collective == need.collective]
    rows += [row for row in need.registered if row.collective == need.collective and _soon_costed(row, need)]
    fitting = [row._replace(graph=need.graph) for row in rows if not not_chosen(need, row.name)]
    return [row for row in fitting if row.reproducible and worth_trying(row, need)]


def _soon_costed(row: Algorithm, need: Need) -> bool:
    return (
        (need.nranks <= MOST_DERIVED or bool(row.rounds))
        and not unserved(row, need.nranks)
        and _has_costs(row, need)
    )


def _has_costs(row: Algorithm, need: Need) -> bool:
    """Say whether a row has costs; where they cannot be derived, its proof will say why."""
    try:
        if not row.rounds:
            row._replace(graph=need.graph).cost("rounds", need.nranks, nodes=need.nodes)
    except ScheduleError as error:
        log.info("%s has no costs: %s", row.key, error)
        return False
    return True


def _row(need: Need, algorithm: str) -> Algorithm:
    return find(need.collective, algorithm)._replace(graph=need.graph)


def candidates(need: Need) -> list[tuple[str, int]]:
    """Return the algorithms and segments that are worth measuring for a call, in the order that the model likes them."""
    costs = [
        (modelled(need, row, segment), row.name, segment)
        for row in _rows(need)
        for segment in _segments(row, need)
    ]
    return [(name, segment) for _, name, segment in sorted(costs)]


def _segments(row: Algorithm, need: Need) -> list[int]:
    """Return the whole message where there is no pipeline, else the model's best segment, its quarter and its fourfold."""
    assert need.nbytes is not None
    whole = max(1, need.nbytes)
    if not (row.pipelined or row.chunked):
        return [whole]
    best = best_modelled(need, row)[1]
    return sorted({min(whole, max(MIN_SEGMENT, segment)) for segment in (best // 4, best, 4 * best)})


def may_be_chosen(row: Algorithm, need: Need) -> bool:
    """Say whether the model may choose a row where the ranks are."""
    nnodes = 1 if need.one_node else len(members(need.nodes)) or need.nranks
    return {
        "any": True,
        "nodes": 1 < nnodes < need.nranks,
        "a node each": 1 < nnodes == need.nranks,
        "none": False,
    }[row.chosen]


def worth_trying(row: Algorithm, need: Need) -> bool:
    """Say whether a hierarchical row could make use of nodes or cache domains, or a row per GPU of GPUs that ranks share."""
    if row.per_gpu:
        return len(need.gpus) > len(members(need.gpus))
    return not row.hierarchical or len(need.nodes) > len(members(need.nodes)) > 1


def _native_seconds(need: Need) -> float:
    assert need.nbytes is not None
    rows = [_row(need, name) for name in NATIVE_ROWS[need.collective]]
    if need.levels == model.ONE_HOST or _has_domains(need):
        network = model.apart(model.NATIVE_NETWORK) if _has_domains(need) else model.NATIVE_NETWORK
        if COLLECTIVES[need.collective].neighbours:
            return model.seconds(rows[0], need.nranks, need.nbytes, need.nbytes or 1, network)
        q, volume = (
            math.ceil(math.log2(need.nranks)),
            2.0 if need.collective in ("allreduce", "reduce") else 1.0,
        )
        work = model.byte_seconds(network, need.nbytes, reduces=COLLECTIVES[need.collective].reduces)
        return q * network.alpha + volume * need.nbytes * work
    return min(modelled(need, row, need.nbytes or 1) for row in rows)


def fitting(need: Need) -> list[str]:
    """Return the names of all algorithms that can serve a call, ``native`` last."""
    rows: list[Algorithm] = [row for row in CATALOGUE.values() if row.collective == need.collective]
    return [name for name in (*(row.name for row in rows), NATIVE) if not unfit(need, name)]


class SizeRange(NamedTuple):
    """The choice for messages of ``least`` to ``most`` bytes; a segment of `NEVER` is the whole message."""

    least: int
    most: int
    choice: Choice


class SizeRanges:
    """The ranges under a communicator's settings, found on demand."""

    def __init__(self, config: Config) -> None:
        self._config = config
        measured = {
            entry.nbytes for kinds in config.table.values() for entries in kinds.values() for entry in entries
        }
        measured |= {nbytes for row in config.registered for nbytes in (row.least, row.most + 1)}
        self._borders = [*sorted({0, *(1 << i for i in range(_POWERS)), *measured}), model.NEVER]
        self.find = lru_cache(maxsize=1024)(self._find)

    def cell(self, nbytes: int) -> tuple[int, int]:
        """Return the least and most bytes of the range that a message of ``nbytes`` is in."""
        i = bisect_right(self._borders, nbytes)
        return self._borders[i - 1], self._borders[i] - 1

    def _find(self, need: Need, algorithm: str | None, segment: int | None) -> SizeRange:
        """Return the range of a need whose ``nbytes`` is None or the least of a range; arguments and errors as `choose`.

        The segment is the longest message's, because the shortest message is often not longer than a segment.
        """
        if need.nbytes is None:
            return SizeRange(0, model.NEVER, choose(need, self._config, algorithm, segment))
        least, most = self.cell(need.nbytes)
        choice = choose(need, self._config, algorithm, segment)
        if not segment and not self._config.segment and choice.segment >= least and most < model.NEVER - 1:
            longest = need._replace(nbytes=most)
            theirs = choose(longest, self._config, algorithm, segment)
            its_segment = (
                theirs.segment
                if theirs.algorithm == choice.algorithm
                else modelled_segment(longest, choice.algorithm)
            )
            choice = choice._replace(segment=its_segment if its_segment < most else model.NEVER)
        return SizeRange(least, most, choice)
