"""The proof of the catalogue: every row, every number of ranks, every root, out of place and in place.

This module chooses the proofs and spreads them over the cores; `hpcoll.analysis.verify` makes each.
"""

import gc
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from random import Random
from typing import NamedTuple, TypeAlias

from hpcoll.analysis.verify import Proof, in_all, verify_schedules
from hpcoll.base.children import python
from hpcoll.base.errors import HpcollError, ScheduleError
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.graph import NO_RANK, Graph, grid, matched, ring
from hpcoll.schedules.ir import Schedule
from hpcoll.schedules.placement import Nodes, blocks, cyclic
from hpcoll.schedules.row import Algorithm, schedule

NCHUNKS = (1, 2, 3, 5)  # chunks with which rows that take any number are proven for all roots
# and for one root: enough that more messages than `RING_SLOTS` pass between two of 64 ranks
MANY_CHUNKS = (
    8,
    21,
    40,
)
MOST_FEWER = 17  # ranks up to which the fewest are looked for on which a row is wrong
EXTRA = (100, 127, 128, 129, 255, 1000)  # numbers of ranks for spot checks, beyond those that are all proven
_PROVER = "from hpcoll.analysis.prove import prover; prover()"
_Idle: TypeAlias = "SimpleQueue[subprocess.Popen[bytes]]"


class Summary(NamedTuple):
    """The proofs of a row."""

    key: str  # of the catalogue
    instances: int = (
        0  # proven combinations of nranks, root, nchunks, placement and graph, each out of place and in place
    )
    messages: int = 0  # of a run of every instance, together
    seconds: float = 0.0  # of CPU time
    ordered: bool = True  # every instance kept rank order
    reproducible: bool = True  # every instance gave all ranks the same bits
    canonical: int = 0  # instances that gave the canonical expression

    def merged(self, other: "Summary") -> "Summary":
        """Return the summary of both, which are of one row."""
        instances, messages, seconds = (
            self.instances + other.instances,
            self.messages + other.messages,
            self.seconds + other.seconds,
        )
        ordered, reproducible = self.ordered and other.ordered, self.reproducible and other.reproducible
        return Summary(
            self.key, instances, messages, seconds, ordered, reproducible, self.canonical + other.canonical
        )


class _Job(NamedTuple):
    row: Algorithm
    nranks: int
    roots: Sequence[int]

    @property
    def instances(self) -> list[tuple[int, int, Nodes]]:
        """``(root, nchunks, nodes)`` of each instance."""
        if self.row.placed:
            first, *others = placements(self.nranks)
            some = sorted({self.roots[0], self.roots[-1 if self.nranks <= 32 else 0]})
            return [(root, 1, first) for root in self.roots] + [
                (root, 1, nodes) for nodes in others for root in some
            ]
        nodes: Nodes = ()
        if not self.row.chunked:
            return [(root, 1, nodes) for root in self.roots]
        few = [(root, nchunks, nodes) for root in self.roots for nchunks in NCHUNKS]
        return few + [(self.roots[0], nchunks, nodes) for nchunks in MANY_CHUNKS]

    @property
    def rows(self) -> list[Algorithm]:
        """The row, a neighbourhood collective's on each graph."""
        if not COLLECTIVES[self.row.collective].neighbours:
            return [self.row]
        return [self.row._replace(graph=graph) for graph in graphs(self.nranks)]

    @property
    def weight(self) -> int:
        """The approximate number of steps to prove, judging by two ranks."""
        nodes = self.instances[0][2]
        steps = [
            len(c)
            for rank in {0, self.nranks // 2}
            for c in schedule(self.row, self.nranks, rank, nodes=nodes).channels
        ]
        return max(steps, default=0) * self.nranks * len(self.instances) * len(self.rows)


def placements(nranks: int) -> list[Nodes]:
    """Return the placements for which rows that depend on it are proven: blocks and cyclic, even and uneven, one node, a node per rank.

    >>> placements(3)
    [(0, 0, 1), (0, 0, 0), (0, 1, 1), (0, 1, 2)]
    """
    pairs, threes, fours = (
        [size] * (nranks // size) + [nranks % size] * (nranks % size > 0) for size in (2, 3, 4)
    )
    uneven: list[int] = []
    while sum(uneven) < nranks:
        uneven.append(min(1 + 3 * len(uneven) % 5, nranks - sum(uneven)))  # 1, 4, 2, 5, 3 and again
    nodes = [
        blocks(pairs),
        cyclic(threes),
        blocks(uneven),
        cyclic(uneven),
        blocks([nranks]),
        blocks([1] * nranks),
        cyclic(fours),
    ]
    return list(dict.fromkeys(nodes))


def graphs(nranks: int) -> list[Graph]:
    """Return the graphs for which neighbourhood collectives are proven: a ring, grids in two and three dimensions, and a random one.

    >>> [graph.degree for graph in graphs(8)[:3]]
    [2, 4, 6]
    """
    flat, deep = (_nearly_square(nranks, ndims) for ndims in (2, 3))
    return [
        ring(nranks),
        grid(flat, [False, False]),
        grid(deep, [True, False, True]),
        random_graph(nranks, 4 * nranks, Random(nranks)),
    ]


def _nearly_square(nranks: int, ndims: int) -> list[int]:
    """Return dimensions of a grid that are as alike as divisors allow."""
    if ndims == 1:
        return [nranks]
    first = max(d for d in range(1, nranks + 1) if nranks % d == 0 and d**ndims <= nranks)
    return [first, *_nearly_square(nranks // first, ndims - 1)]


def random_graph(nranks: int, nedges: int, rng: Random) -> Graph:
    """Return a graph of random edges, several between two ranks and self-loops among them, with open ones, in random orders."""
    edges = [(rng.randrange(nranks), rng.randrange(nranks)) for _ in range(nedges)]
    sides = [[[NO_RANK] * rng.randrange(2) for _ in range(nranks)] for _ in range(2)]
    for source, target in edges:
        sides[0][source].append(target)
        sides[1][target].append(source)
    for peers in (*sides[0], *sides[1]):
        rng.shuffle(peers)
    graph = matched(*sides)
    assert graph is not None
    return graph


def prove(row: Algorithm, nranks: int, root: int = 0, nchunks: int = 1, nodes: Nodes = ()) -> Proof:
    """Prove a row for one number of ranks and root, out of place and in place; blocks differ in size unless the row is uniform.

    Arguments are as in `hpcoll.schedules.row.schedule`. ScheduleError: a schedule is wrong, or the row claims to be ordered, reproducible
    or canonical and is not.
    """
    return prove_schedules(row, _schedules(row, nranks, root, nchunks, nodes), nodes)


def _schedules(row: Algorithm, nranks: int, root: int, nchunks: int, nodes: Nodes) -> list[Schedule]:
    return [schedule(row, nranks, rank, root, nchunks, nodes) for rank in range(nranks)]


def prove_schedules(row: Algorithm, schedules: Sequence[Schedule], nodes: Nodes = ()) -> Proof:
    """Prove the schedules of all ranks of a row, which are for that placement, as `prove`."""
    if row.builder is not None:
        _check_scratch(schedules)
    proofs = []
    # a proof in place is one of both, unless a step tells them apart
    for in_place in reversed(modes(row.collective)):
        proofs.append(verify_schedules(schedules, in_place=in_place, uniform=row.uniform))
        if not proofs[0].told_apart:
            break
    summary = in_all(proofs)
    claims = {
        "ordered": row.ordered > summary.ordered,
        "reproducible": row.reproducible > summary.reproducible,
        "canonical": not summary.canonical and row.is_canonical(len(schedules), nodes),
    }
    for claim, wrong in claims.items():
        if wrong:
            raise ScheduleError(f"{row.key} is said to be {claim}, and is not on {len(schedules)} ranks")
    return summary


def _check_scratch(schedules: Sequence[Schedule]) -> None:
    """Refuse scratch cells of sizes that no chunk of any rank has."""
    if not any(s.scratch for s in schedules):
        return
    known: set[Hashable] = set()
    for s in schedules:
        who, meaning = (s.rank, s.nranks, s.root, s.nchunks), s.meaning
        known.update(meaning.input_extent(s.rank, i) for i in range(meaning.ninputs(*who)))
        known.update(meaning.output_extent(s.rank, i) for i in range(meaning.noutputs(*who)))
    for s in schedules:
        for extent in s.scratch:
            if extent not in known:
                why = "names the size of a chunk that there is not: a cell is as large as the chunk, or block, of that index"
                raise ScheduleError(f"w.scratch({extent}) {why}", rank=s.rank)


def fewest_wrong(row: Algorithm, nranks: int, error: ScheduleError) -> tuple[int, ScheduleError]:
    """Return the fewest ranks on which a row is wrong, and its error there, where it is wrong on ``nranks`` with that error."""
    fewer = [n for n in (row.serves or range(2, MOST_FEWER)) if n < nranks] if row.graph is None else []
    for one in fewer:
        try:
            prove(row, one, (row.roots or (0,))[0])
        except ScheduleError as found:
            return one, found
    return nranks, error


def modes(name: str) -> tuple[bool, ...]:
    """Return the values of ``in_place`` for which schedules of a collective run."""
    collective = COLLECTIVES[name]
    if collective.always_in_place:
        return (True,)
    return (False, True) if collective.aliases else (False,)


def prove_catalogue(
    max_nranks: int = 64,
    jobs: int | None = None,
    extra: Sequence[int] = EXTRA,
    *,
    rows: Iterable[Algorithm] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Summary]:
    """Prove every row for 1 .. ``max_nranks`` ranks and all roots, and for ``extra`` numbers of ranks and up to four roots.

    A row that serves only some numbers of ranks is proven for those up to ``max_nranks``, and for all of them where these are none.
    It has ``jobs`` processes, by default one per core; 1 stays in this process. ``progress`` is called with the number of finished parts
    and of all, whenever one ends. ScheduleError: a row is wrong.
    """
    rows = list(CATALOGUE.values() if rows is None else rows)
    todo = sorted(_jobs(rows, max_nranks, extra), key=lambda job: job.weight, reverse=True)
    summaries = {row.key: Summary(row.key) for row in rows}
    for done, summary in enumerate(_run(todo, jobs or len(os.sched_getaffinity(0))), 1):
        summaries[summary.key] = summaries[summary.key].merged(summary)
        progress(done, len(todo))
    return list(summaries.values())


def _jobs(rows: Sequence[Algorithm], max_nranks: int, extra: Sequence[int]) -> Iterator[_Job]:
    for row in rows:
        rooted = COLLECTIVES[row.collective].rooted
        serves = [nranks for nranks in row.serves if nranks <= max_nranks] or row.serves
        for nranks in serves or range(1, max_nranks + 1):
            yield _Job(row, nranks, row.roots or range(nranks) if rooted else (0,))
        for nranks in () if row.serves else extra:
            yield _Job(row, nranks, sorted({0, 1, nranks // 2, nranks - 1}) if rooted else (0,))


def _run(todo: Sequence[_Job], jobs: int) -> Iterator[Summary]:
    if jobs == 1:
        yield from map(_prove_job, todo)
        return
    # which other processes may not be able to import
    yield from (_prove_job(job) for job in todo if job.row.builder is not None)
    todo = [job for job in todo if job.row.builder is None]
    idle: _Idle = SimpleQueue()
    with ThreadPoolExecutor(jobs) as threads, ExitStack() as ends:
        for _ in range(jobs):  # no forks, because this process may have threads, or MPI
            prover = subprocess.Popen(python(_PROVER), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            ends.callback(_end, prover)
            idle.put(prover)
        ends.callback(threads.shutdown, wait=False, cancel_futures=True)
        for future in as_completed([threads.submit(_proven_elsewhere, idle, job) for job in todo]):
            yield future.result()


def _end(prover: "subprocess.Popen[bytes]") -> None:
    prover.kill()
    prover.wait()
    for pipe in filter(None, (prover.stdin, prover.stdout)):
        with suppress(BrokenPipeError):  # a thread has sent half of a job
            pipe.close()


def _proven_elsewhere(idle: _Idle, job: _Job) -> Summary:
    """Have a job proven by one of the processes that are idle."""
    prover = idle.get()
    assert prover.stdin is not None
    assert prover.stdout is not None
    try:
        pickle.dump(job, prover.stdin)
        prover.stdin.flush()
        answer: Summary | Exception = pickle.load(prover.stdout)
    except (EOFError, OSError):
        raise HpcollError(
            f"process {prover.pid} has ended while it proved {job.row.key} on {job.nranks} ranks"
        ) from None
    finally:
        idle.put(prover)
    if isinstance(answer, Exception):
        raise answer
    return answer


def prover() -> None:
    """Prove the jobs that come on stdin, and answer each on stdout; the whole program of another process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    gc.disable()  # schedules hold no cycles, and looking for some would take half of the time
    while True:
        try:
            answer: Summary | Exception = _prove_job(pickle.load(sys.stdin.buffer))
        except EOFError:
            return
        except Exception as error:
            answer = error
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.flush()


def _prove_job(job: _Job) -> Summary:
    start = time.process_time()
    try:
        proofs = [proof for row in job.rows for proof in _prove_instances(row, job)]
    except ScheduleError as error:
        nranks, first = fewest_wrong(job.row, job.nranks, error)
        raise ScheduleError(f"{job.row.key} on {nranks} ranks: {first}") from None
    seconds, messages = time.process_time() - start, sum(proof.messages for proof in proofs)
    summary = in_all(proofs)
    canonical = sum(proof.canonical for proof in proofs)
    return Summary(
        job.row.key, len(proofs), messages, seconds, summary.ordered, summary.reproducible, canonical
    )


def _prove_instances(row: Algorithm, job: _Job) -> Iterator[Proof]:
    """Prove each instance; those of roots that only rename ranks share a proof.

    A collective of one vector, with a root, means the same whatever the ranks' names are, except for their order. So such a proof says
    nothing of the order for another root, and one that says ordered is not shared where contributions are combined.
    """
    collective = COLLECTIVES[row.collective]
    renames = collective.rooted and not collective.blocks
    known: list[tuple[list[Schedule], Proof]] = []
    for instance in job.instances:
        schedules = _schedules(row, job.nranks, *instance)
        renamed = _renamed(schedules) if renames else []
        proof = next((proof for found, proof in known if found == renamed), None)
        if proof is None:
            proof = prove_schedules(row, schedules, instance[2])
            if renames and not (proof.ordered and collective.reduces):
                known.append((renamed, proof))
        yield proof


def _renamed(schedules: Sequence[Schedule]) -> list[Schedule]:
    """Return the schedules of all ranks after these are counted from the root on, without the order of what is combined."""
    root, nranks = schedules[0].root, len(schedules)
    names = {-1: -1} | {(root + vrank) % nranks: vrank for vrank in range(nranks)}
    return [
        s._replace(
            rank=names[s.rank],
            root=0,
            channels=tuple(
                [(op, names.get(peer), dst, srcs, *rest) for op, peer, dst, srcs, _, *rest in c]  # type: ignore[misc]
                for c in s.channels
            ),
        )
        for s in (*schedules[root:], *schedules[:root])
    ]
