"""Mixture of experts, with experts distributed over the ranks: tokens travel to their experts and back by alltoallv.

Start it with ``mpirun -n 4 python -m mpi4py examples/mixture_of_experts.py``. Expert parallelism as in GShard (arXiv 2006.16668): a gate,
held by every rank, picks two experts for each token; tokens are images of scikit-learn's digits, less their mean. A first alltoallv tells
each rank how many tokens come for each of its experts, a second brings them (dispatch), the experts work, a third brings the results back
(combine), where they are added with the gate's weights. No expert has a capacity, so that no token is dropped: each rank sends and
receives as many as it happens to have. Ends with status 1 when the results are not those of one process that has all experts.
"""

from __future__ import annotations

import sys

import numpy as np
from common import Array, Parser, dense, layers, load, share, shares
from mpi4py import MPI
from timeline import Trace

import hpcoll

CHOSEN = 2  # experts per token
WIDTH, HIDDEN = 64, 128


def gated(tokens: Array, gate: Array) -> tuple[Array, Array]:
    """Return the experts of each token, ``(ntokens, CHOSEN)``, and their weights: softmax over those that were chosen."""
    logits = dense(tokens, gate, last=True)
    chosen = np.argsort(-logits, axis=1, kind="stable")[:, :CHOSEN]
    powers = np.exp(np.take_along_axis(logits, chosen, axis=1) - logits.max(axis=1, keepdims=True))
    return chosen, powers / powers.sum(axis=1, keepdims=True)


def applied(expert: list[Array], tokens: Array) -> Array:
    """Return the output of an expert, two dense layers, for tokens."""
    return dense(dense(tokens, expert[0]), expert[1], last=True)


class Experts:
    """The experts of this rank, and the exchange of tokens with the others."""

    def __init__(self, comm: hpcoll.Communicator, experts: list[list[Array]]) -> None:
        self.comm, self.trace = comm, Trace(comm)
        self.shares = shares(len(experts), comm.size)
        self.mine = experts[share(len(experts), comm.rank, comm.size)]

    def exchange(self, name: str, rows: Array, sending: Array, receiving: Array) -> Array:
        """Send rows, sorted by rank, and return those that come: ``sending`` and ``receiving`` count them for each rank."""
        found = np.empty((receiving.sum(), *rows.shape[1:]), rows.dtype)
        width = int(np.prod(rows.shape[1:]))
        with self.trace("collective", name):
            self.comm.Alltoallv([rows, sending * width], [found, receiving * width])
        return found

    def __call__(self, tokens: Array, chosen: Array, weights: Array) -> Array:
        """Return for each token of this rank the weighted sum of its experts' outputs."""
        nranks, nmine = self.comm.size, len(self.mine)
        with self.trace("compute", "sort"):
            order = np.argsort(chosen, axis=None, kind="stable")  # by expert, and so by rank
            outgoing = np.bincount(chosen.ravel(), minlength=sum(self.shares))  # to each expert
            sending = np.array([part.sum() for part in np.split(outgoing, np.cumsum(self.shares)[:-1])])
            rows = tokens[order // CHOSEN]
        counts = self.exchange("counts", outgoing, np.array(self.shares), np.full(nranks, nmine)).reshape(
            nranks, nmine
        )
        receiving = counts.sum(axis=1)
        arrived = self.exchange("dispatch", rows, sending, receiving)
        with self.trace("compute", "experts"):
            result = np.empty_like(arrived)
            # the expert of each row that arrived
            which = np.repeat(np.tile(np.arange(nmine), nranks), counts.ravel())
            for i, expert in enumerate(self.mine):
                result[which == i] = applied(expert, arrived[which == i])
        back = self.exchange("combine", result, receiving, sending)
        with self.trace("compute", "add"):
            total = np.zeros_like(tokens)
            np.add.at(total, order // CHOSEN, weights.ravel()[order, None] * back)
        return total


def serially(tokens: Array, chosen: Array, weights: Array, experts: list[list[Array]]) -> Array:
    """Compute the same in one process that has all experts."""
    total = np.zeros_like(tokens)
    for i, expert in enumerate(experts):
        token, place = np.nonzero(chosen == i)
        total[token] += weights[token, place, None] * applied(expert, tokens[token])
    return total


def main(arguments: list[str] | None = None) -> int:
    """Compute, compare with the serial run, and return the exit status."""
    parser = Parser("Mixture of experts by alltoallv.")
    parser.add_argument("--experts", type=int, default=8, help="which the ranks share")
    options = parser.parse_args(arguments)
    comm = hpcoll.Communicator(MPI.COMM_WORLD)
    if options.experts < max(CHOSEN, comm.size):
        parser.error(f"{comm.size} ranks need as many --experts, and at least {CHOSEN}")
    images, _ = load()
    tokens = images - images.mean(axis=0)
    gate = layers([WIDTH, options.experts], options.seed)[0]
    every = [layers([WIDTH, HIDDEN, WIDTH], options.seed + 1 + i) for i in range(options.experts)]
    part = share(len(tokens), comm.rank, comm.size)
    experts = Experts(comm, every)
    for _ in range(2):  # the first calls compile
        experts.trace.restart()
        with experts.trace("compute", "gate"):
            chosen, weights = gated(tokens[part], gate)
        mine = experts(tokens[part], chosen, weights)
    chosen, weights = gated(tokens, gate)
    wanted = serially(tokens, chosen, weights, every)
    formula = 8 * (options.experts * comm.size + 2 * CHOSEN * len(tokens) * WIDTH)
    loads = np.bincount(chosen.ravel(), minlength=options.experts)
    title = f"{options.experts} experts, {len(tokens)} tokens, {loads.min()} to {loads.max()} per expert"
    return experts.trace.finish(title, [(mine, wanted[part])], WIDTH + HIDDEN, formula, options.plot)


if __name__ == "__main__":
    sys.exit(main())
