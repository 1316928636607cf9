"""Softmax, L2 normalisation and weighted sum of vectors whose elements are distributed over the ranks.

Start it with ``mpirun -n 4 python -m mpi4py examples/operators.py``. Every rank holds a share of the images of scikit-learn's digits.

- Softmax of the similarities of a few query images to all images, as in attention whose keys are distributed: each rank's largest value
  goes into an allreduce MAX, so that no exponential overflows, and its sum of exponentials into an allreduce SUM (the online softmax of
  Milakov and Gimelshein, arXiv 1805.02867, does the same to parts of a vector).
- L2 normalisation of each pixel over all images: an allreduce SUM of squares.
- Weighted sum: the mean image of all ranks from the mean of each, weighted with its number of images, by one allreduce with
  ``premul_sum`` (federated averaging, arXiv 1602.05629).

Ends with status 1 when a result is not that of NumPy on all images.
"""

from __future__ import annotations

import sys

import numpy as np
from common import Array, Parser, load, share
from mpi4py import MPI
from timeline import Trace

import hpcoll


def softmax(scores: Array, comm: hpcoll.Communicator, trace: Trace) -> Array:
    """Return the softmax along the last axis, of which each rank holds a part: ``(nqueries, nmine)``."""
    with trace("compute", "max"):
        largest = scores.max(axis=1)
    with trace("collective", "Allreduce MAX"):
        comm.Allreduce(MPI.IN_PLACE, largest, op=MPI.MAX)
    with trace("compute", "exp"):
        result = np.exp(scores - largest[:, None])
        total = result.sum(axis=1)
    with trace("collective", "Allreduce SUM"):
        comm.Allreduce(MPI.IN_PLACE, total, op=MPI.SUM)
    result /= total[:, None]
    return result


def l2_normalised(columns: Array, comm: hpcoll.Communicator, trace: Trace) -> Array:
    """Return columns divided by their Euclidean lengths, of which each rank holds some rows; a column of zeros stays."""
    with trace("compute", "squares"):
        squares = (columns**2).sum(axis=0)
    with trace("collective", "Allreduce SUM"):
        comm.Allreduce(MPI.IN_PLACE, squares, op=MPI.SUM)
    return columns / np.where(squares > 0, np.sqrt(squares), 1)


def weighted_sum(vector: Array, weight: float, comm: hpcoll.Communicator, trace: Trace) -> Array:
    """Return the sum of each rank's vector times its own weight."""
    result = np.empty_like(vector)
    with trace("collective", "Allreduce premul_sum"):
        comm.Allreduce(vector, result, op=hpcoll.premul_sum(weight))
    return result


def serially(queries: Array, images: Array) -> tuple[Array, Array, Array]:
    """Return the three results for all images, by NumPy."""
    powers = np.exp(queries @ images.T)
    lengths = np.linalg.norm(images, axis=0)
    return (
        powers / powers.sum(axis=1, keepdims=True),
        images / np.where(lengths > 0, lengths, 1),
        images.mean(axis=0),
    )


def main(arguments: list[str] | None = None) -> int:
    """Compute, compare with NumPy, and return the exit status."""
    parser = Parser("Softmax, L2 normalisation and weighted sum of distributed vectors.")
    parser.add_argument("--queries", type=int, default=20, help="images whose similarity to all is asked for")
    options = parser.parse_args(arguments)
    comm = hpcoll.Communicator(MPI.COMM_WORLD)
    images, _ = load()
    if not 1 <= options.queries <= len(images):
        parser.error(f"--queries takes 1 to {len(images)}")
    queries = images[np.random.default_rng(options.seed).choice(len(images), options.queries, replace=False)]
    part = share(len(images), comm.rank, comm.size)
    mine, trace = images[part], Trace(comm)
    for _ in range(2):  # the first calls compile
        trace.restart()
        weights = softmax(queries @ mine.T, comm, trace)
        unit = l2_normalised(mine, comm, trace)
        mean = weighted_sum(mine.mean(axis=0), len(mine) / len(images), comm, trace)
    wanted = serially(queries, images)
    pairs = [(weights, wanted[0][:, part]), (unit, wanted[1][part]), (mean, wanted[2])]
    formula = 8 * comm.size * (2 * options.queries + 2 * images.shape[1])
    title = f"softmax, L2 normalisation, weighted sum over {len(images)} images"
    return trace.finish(title, pairs, len(images), formula, options.plot)


if __name__ == "__main__":
    sys.exit(main())
