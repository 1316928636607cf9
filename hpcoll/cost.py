"""Closed-form time of a catalogue row on a network of equal links. Floor 4.

Hockney's model with LogP's overhead: a message costs ``alpha`` seconds and ``beta`` seconds per byte; what a rank spends on
each message of a pipeline that is already full is ``overhead``; combining costs ``gamma`` seconds per byte.
"""

import math
from typing import NamedTuple

from hpcoll.algorithm import Algorithm
from hpcoll.collectives import COLLECTIVES

SEGMENTS = tuple(1 << k for k in range(14, 25))  # bytes: 16 KiB .. 16 MiB


class Network(NamedTuple):
    """Constants of the model.

    Attributes:
        alpha: Seconds per message.
        beta: Seconds per byte.
        gamma: Seconds per byte combined.
        overhead: Seconds of a rank's own time per message, ``<= alpha``.
        eager: Bytes up to which the MPI library sends a message at once.
        handshake: Seconds, of the rank's own time too, that a longer message costs besides.
        cache: Bytes of a message, or of a segment, that stay in a core's cache.
        spill: How many times as much a byte costs beyond that.
    """

    alpha: float
    beta: float
    gamma: float
    overhead: float
    eager: int
    handshake: float
    cache: int
    spill: float


def byte_seconds(network: Network, nbytes: float, *, reduces: bool) -> float:
    """Seconds that each byte of a message or segment of ``nbytes`` costs on its way."""
    return (network.beta + network.gamma * reduces) * (network.spill if nbytes > network.cache else 1.0)


def seconds(row: Algorithm, nranks: int, nbytes: float, segment: float, network: Network) -> float:
    """Time of one call.

    Args:
        row: Catalogue row.
        nranks: ``>= 1``; one rank costs nothing.
        nbytes: m, bytes of the whole message as the catalogue counts it.
        segment: Bytes per segment; for chunked rows bytes per chunk. Rows without a pipeline ignore it.
        network: Constants.
    """
    if nranks < 2:
        return 0.0
    nsegments = max(1, math.ceil(nbytes / segment)) if row.pipelined or row.chunked else 1
    nchunks = nsegments if row.chunked else 1
    rounds, messages, serial, sent = (row.cost(field, nranks, nchunks) for field in ("rounds", "messages", "serial", "sent"))
    messages = max(messages, rounds)
    piece = nbytes if row.chunked else nbytes / nsegments
    handshake = network.handshake if serial * piece > network.eager * messages else 0.0
    alpha, overhead = network.alpha + handshake, network.overhead + handshake
    work = byte_seconds(network, nbytes / nsegments, reduces=COLLECTIVES[row.collective].reduces)
    first = rounds * alpha + (messages - rounds) * overhead + serial * piece * work
    return first if row.chunked else first + (nsegments - 1) * max(sent * piece * work, messages * overhead)


def best_segment(row: Algorithm, nranks: int, nbytes: float, network: Network) -> tuple[float, int]:
    """``(seconds, segment bytes)`` of the fastest segment size; the whole message where cutting does not help."""
    whole = max(1, math.ceil(nbytes))
    candidates = [whole, *(s for s in SEGMENTS if s < whole)] if row.pipelined or row.chunked else [whole]
    cost, negative = min((seconds(row, nranks, nbytes, segment, network), -segment) for segment in candidates)
    return cost, -negative
