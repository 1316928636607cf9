"""A program that runs under mpiexec: every case of `same_cases`, exact sums of distributed arrays; rank 0 prints one hash a line.

    mpiexec -n 3 python benchmarks/same_bits/matrix.py                 # cases in host memory, and permuted ranks
    mpiexec -n 2 python benchmarks/same_bits/matrix.py --double        # arrays of the double of the CUDA driver
    mpiexec -n 4 python benchmarks/same_bits/matrix.py --largest 4097  # short shares only

`runs.py` starts it many times and compares hashes.
"""

import argparse
import hashlib
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests")]

import cut_arrays  # noqa: E402
from right_bits import Array, bits  # noqa: E402
from same_cases import DOUBLE, MEMORIES, Memory, SameCase, cases, key, ordered, permutations, run  # noqa: E402

import hpcoll  # noqa: E402

WORLD = MPI.COMM_WORLD
ORDER: dict[str, Any] = {"order": "rank"} if ordered() and "HPCOLL_ORDER" not in os.environ else {}


class Broken(Exception):
    """A communicator that no call can use any more."""


class Tally:
    """The findings of a run: cases by kind, hashes by key, and what was wrong."""

    def __init__(self) -> None:
        self.begun, self.planned = 0, 0  # of what is to be run
        self.cases = Counter[str]()
        self.hashes: dict[str, str] = {}
        self.wrong: list[str] = []

    def note(self, kind: str, name: str, found: Array | None, good: bool, what: object) -> None:
        """Note a case on this rank."""
        self.cases[kind] += 1
        if found is not None:
            digest = hashlib.sha256(bits(found)).hexdigest()[:16]
            good &= self.hashes.setdefault(name, digest) == digest
        if not good:
            self.wrong.append(f"{kind}: {what}")


def nodes_of(comm: Any) -> tuple[int, ...]:
    """Return the number of each rank's node."""
    names = comm.allgather(MPI.Get_processor_name())
    return tuple(list(dict.fromkeys(names)).index(name) for name in names)


def memory_of(comm: Any, name: str, double: Any) -> Memory:
    """Return how buffers are made: on the GPU, where there is one."""
    if double is not None:
        import gpu_cases

        return Memory(
            partial(cut_arrays.on_gpu, double),
            lambda buffer, values: gpu_cases.write(getattr(buffer, "array", buffer), values),
            lambda buffer: gpu_cases.read(array := getattr(buffer, "array", buffer), array.dtype),
        )

    def symmetric(values: Array) -> Array:
        made: Array = comm.empty(values.shape, values.dtype)
        made[...] = values
        return made

    return Memory(symmetric if name == "symmetric" else np.copy, np.copyto, np.asarray)


def attempt(comm: Any, case: SameCase, mine: int, tally: Tally, kind: str, double: Any = None) -> None:
    """Run a case and note it; an error that all ranks have is one of its results, and one that breaks the communicator the last."""
    options = {} if case.op == "exact" else ORDER
    try:
        ran = run(comm, case, mine, memory_of(comm, case.memory, double), **options)
    except (hpcoll.HpcollError, MPI.Exception, AttributeError, TypeError) as error:
        tally.note(kind, "", None, False, f"{case}: {type(error).__name__}: {str(error)[:300]}")
        if "cannot be used" in str(error):
            raise Broken from error
        return
    whole = case.collective in ("allreduce", "reduce")
    tally.note(
        kind,
        key(case, comm.size)
        if whole
        else f"{case.collective} {key(case, comm.size)} {comm.rank} of {comm.size}",
        *ran,
        case,
    )


@contextmanager
def gpu(wanted: bool) -> Iterator[Any]:
    """The double of the driver, where it is wanted."""
    if not wanted:
        yield None
        return
    from cuda_double import installed

    with installed() as double:
        yield double


def todo(comm: Any, asked: argparse.Namespace, double: Any, tally: Tally) -> Iterator[Callable[[], None]]:
    """Yield what is to be run."""
    on = "GPU" if asked.double else "host"
    for case in cases(comm.size, nodes_of(comm), asked.largest):
        if double is None or case.memory == MEMORIES[0]:
            yield partial(
                attempt,
                comm,
                case,
                comm.rank,
                tally,
                f"{on}, {'exact' if case.op == 'exact' else 'canonical'}",
                double,
            )
    for order in permutations(comm.size) if double is None else ():
        other = comm.Split(0, order[comm.rank])
        for case in permuted(other):
            yield partial(attempt, other, case, other.rank, tally, "ranks permuted")
            if case.op == "exact" and case.collective in ("allreduce", "reduce"):
                yield partial(attempt, comm, case, order[comm.rank], tally, "contributions permuted")
    for function, dtype in cut_arrays.pairs():
        yield partial(cut, comm, double, function, dtype, tally)


def cut(comm: Any, double: Any, function: cut_arrays.Function, dtype: np.dtype, tally: Tally) -> None:
    """Run a function of arrays that are cut in every way."""
    for name, found, good, what in cut_arrays.of_type(comm, double, function, dtype):
        tally.note("arrays", name, found, good, what)


def everything(comm: Any, asked: argparse.Namespace, double: Any, tally: Tally) -> None:
    """Run what was asked for, in an order by the seed, until the time is over."""
    begin, all_of_it = time.monotonic(), list(todo(comm, asked, double, tally))
    random.Random(asked.seed).shuffle(all_of_it)
    tally.planned = len(all_of_it)
    for i, one in enumerate(all_of_it):
        if i % 10 == 0 and WORLD.bcast(time.monotonic() - begin > asked.seconds):
            break
        tally.begun += 1
        one()


def permuted(comm: Any) -> Iterator[SameCase]:
    """Yield the cases of ranks in another order: a few of every row."""
    for case in cases(comm.size, nodes_of(comm), 7):
        if case.dtype in (DOUBLE, np.complex64) and case.count in (7, 37):
            yield case


def main() -> None:
    """Run, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--double", action="store_true", help="arrays are on a GPU, that of the double")
    parser.add_argument("--largest", type=int, default=1_000_000, help="elements of a share (1000000)")
    parser.add_argument(
        "--seconds", type=float, default=3600.0, help="after which no further case begins (3600)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the order of cases (1)")
    asked = parser.parse_args()
    comm = hpcoll.Communicator(WORLD)
    with gpu(asked.double) as double:
        tally = Tally()
        with suppress(Broken):
            everything(comm, asked, double, tally)
    hashes = sorted({pair for found in WORLD.allgather(tally.hashes) for pair in found.items()})
    wrong = [
        f"rank {rank}: {one}" for rank, found in enumerate(WORLD.allgather(tally.wrong)) for one in found
    ]
    if WORLD.rank == 0:
        for name, one in hashes:
            print("hash", one, name)
        for kind, count in tally.cases.items():
            print("cases", count, kind)
        print("percent", 100 * tally.begun // tally.planned)
        for one in wrong:
            print("wrong", one)
        sys.stdout.flush()
    sys.exit(0)


main()
