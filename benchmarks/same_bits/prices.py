"""The price of the same bits: plain sums and others in turns, in one process, so that both meet the same machine.

    mpiexec -n 2 python benchmarks/same_bits/prices.py                # plain, order="rank" and EXACT_SUM: 8 KiB, 1 MiB, 16 MiB of float64
    python benchmarks/same_bits/prices.py --local                     # exact_sum and exact_dot of 10^7 doubles, beside np.sum and np.dot

Each round makes every contender once, in an order that turns; rank 0 prints medians, least times, and the median of the ratios of rounds.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

import hpcoll

SIZES = (8 << 10, 1 << 20, 16 << 20)
ROUNDS = {8 << 10: 1500, 1 << 20: 250, 16 << 20: 40}
LOCAL = 10_000_000


def in_turns(
    contenders: dict[str, Callable[[], Any]], rounds: int, meet: Callable[[], Any], again: int
) -> dict[str, list[float]]:
    """Return the seconds of every contender in each round; ``again``: calls timed together."""
    names, found = list(contenders), {name: list[float]() for name in contenders}
    for turn in range(rounds + 3):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            call = contenders[name]
            meet()
            begin = time.perf_counter()
            for _ in range(again):
                call()
            if turn >= 3:
                found[name].append((time.perf_counter() - begin) / again)
    return found


def lines(what: str, found: dict[str, list[float]]) -> list[str]:
    """Return rows of a table, the first contender being what others are compared with."""
    plain = next(iter(found.values()))
    rows = []
    for name, times in found.items():
        ratio = median(one / other for one, other in zip(times, plain))
        figures = 1e6 * median(times), 1e6 * min(times), ratio, min(times) / min(plain)
        rows.append(
            f"| {what} | {name} | {figures[0]:.1f} | {figures[1]:.1f} | {figures[2]:.2f} | {figures[3]:.2f} |"
        )
    return rows


def distributed(sizes: list[int], share: float) -> list[str]:
    """Measure reductions of all ranks; the slowest rank counts."""
    from mpi4py import MPI

    comm, rows = hpcoll.Communicator(MPI.COMM_WORLD), []
    for nbytes in sizes:
        rng = np.random.default_rng(comm.rank)
        x = rng.standard_normal(nbytes // 8)
        y = np.empty_like(x)
        contenders = {
            "SUM": lambda x=x, y=y: comm.Allreduce(x, y),
            'SUM, order="rank"': lambda x=x, y=y: comm.Allreduce(x, y, order="rank"),
            "EXACT_SUM": lambda x=x, y=y: comm.Allreduce(x, y, op=hpcoll.EXACT_SUM),
        }
        rounds = max(5, int(share * ROUNDS.get(nbytes, 100)))
        own = in_turns(contenders, rounds, comm.Barrier, 10 if nbytes < 1 << 16 else 1)
        most = {name: np.max(comm.allgather(times), axis=0).tolist() for name, times in own.items()}
        rows += lines(f"{comm.size} ranks, {nbytes >> 10} KiB", most)
    if comm.rank:
        return []
    return [MPI.Get_library_version().splitlines()[0].strip("\0"), *rows]


def local(count: int, rounds: int) -> list[str]:
    """Measure sums and products of arrays of this process."""
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal(count), rng.standard_normal(count)
    sums = {"np.sum": lambda: np.sum(x), "exact_sum": lambda: hpcoll.exact_sum(None, x)}
    products = {"np.dot": lambda: np.dot(x, y), "exact_dot": lambda: hpcoll.exact_dot(None, x, y)}
    wide = x * 2.0 ** rng.integers(-600, 600, count)
    spread = {"np.sum": lambda: np.sum(wide), "exact_sum": lambda: hpcoll.exact_sum(None, wide)}
    return [
        *lines(f"{count:,} doubles", in_turns(sums, rounds, lambda: None, 1)),
        *lines(f"{count:,} products", in_turns(products, rounds, lambda: None, 1)),
        *lines(f"{count:,} doubles of 2**-600 to 2**600", in_turns(spread, rounds, lambda: None, 1)),
    ]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--local", action="store_true", help="arrays of one process, without MPI")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="bytes of float64 messages")
    parser.add_argument("--share", type=float, default=1.0, help="of the usual number of rounds (1)")
    asked = parser.parse_args()
    found = (
        local(LOCAL, max(3, int(30 * asked.share))) if asked.local else distributed(asked.sizes, asked.share)
    )
    if found:
        print(
            "| what | call | us, median | us, least | ratio, median | ratio, least |\n|---|---|---|---|---|---|"
        )
        print("\n".join(found), flush=True)


if __name__ == "__main__":
    main()
