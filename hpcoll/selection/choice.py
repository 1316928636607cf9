"""A choice of algorithm, the properties of a call on which it depends, and why an algorithm does not serve a call.

`hpcoll.selection.choose` chooses.
"""

from typing import NamedTuple

from hpcoll.analysis.cost import NEVER, ONE_HOST, Levels
from hpcoll.base.dtypes import BYTES
from hpcoll.schedules.catalogue import find
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.graph import Graph
from hpcoll.schedules.placement import Nodes
from hpcoll.schedules.row import Algorithm, unserved
from hpcoll.selection.config import NATIVE

MAX_NATIVE_NBYTES = 2**31 - 1  # that every MPI library can count in a message
_ANY_ORDER = "its results are not the canonical expression, which order='rank' asks for"


class Choice(NamedTuple):
    """The algorithm that serves a call."""

    algorithm: str  # name in the catalogue, or ``native``
    segment: int  # bytes per segment (of the whole message), at least 1
    why: str  # the reason, in a phrase for the log
    brief: str = ""  # the reason without figures, for the ledger; empty where `why` has none


class Need(NamedTuple):
    """The properties of a call on which the choice depends.

    ``nodes`` are the parts that hierarchical rows use, as `hpcoll.schedules.placement.parts`: nodes, or cache domains of one node. They are
    empty where every rank has a node of its own, or all share memory and no domains are known.
    """

    collective: str
    nranks: int
    nbytes: int | None  # m as the catalogue counts it; None where a rank cannot know it (v forms)
    ordered: bool = False  # the operator is not commutative
    varying: bool = False  # blocks differ in size
    native: bool = True  # the MPI library can serve the call
    strict: bool = False  # hpcoll promises more than the MPI library, so ``native`` must be asked for by name
    type_class: str = BYTES  # of element types, as in the tuning table
    one_node: bool = False  # all ranks share the memory of a node
    nodes: Nodes = ()
    levels: Levels = ONE_HOST  # costs of messages on and between `nodes`; unused where all ranks share memory and one domain
    gpu: bool = False  # the arrays are in GPU memory
    gpus: Nodes = ()  # number of each rank's GPU where all ranks map each other's GPU memory
    one_fold: bool = False  # only algorithms that combine all contributions in one reduction serve the call
    graph: Graph | None = None  # of a neighbourhood collective
    canonical: bool = False  # every result must be the canonical expression of the contributions
    registered: tuple[
        Algorithm, ...
    ] = ()  # rows that are not the package's, among which the model chooses, too


def unfit(need: Need, algorithm: str) -> str:
    """Return the reason why an algorithm cannot serve a call; the empty string if it can."""
    if algorithm == NATIVE and need.gpu:
        return "the arrays are in GPU memory"
    if algorithm == NATIVE and need.canonical:
        return _ANY_ORDER
    if algorithm == NATIVE:
        return "" if need.native else "the MPI library does not know this operator, element type or form"
    row = find(need.collective, algorithm)
    if need.canonical and not row.is_canonical(need.nranks, need.nodes):
        return _ANY_ORDER
    if need.ordered and not (need.canonical or row.ordered or COLLECTIVES[need.collective].ordered):
        return "it combines ranks in any order and the operator is not commutative"
    if need.one_fold and not row.one_fold:
        return "it would round more than once"
    if need.varying and row.uniform:
        return "it needs equal blocks"
    return unserved(row, need.nranks)


def not_chosen(need: Need, algorithm: str) -> str:
    """Return the reason why an algorithm is not chosen unless it is asked for by name; the empty string if it may be."""
    reason = unfit(need, algorithm)
    if reason or algorithm != NATIVE:
        return reason or _out_of_range(find(need.collective, algorithm), need)
    if need.strict:
        return "the call gets a promise that the MPI library does not give"
    return "not every MPI library can count the message" if (need.nbytes or 0) > MAX_NATIVE_NBYTES else ""


def _out_of_range(row: Algorithm, need: Need) -> str:
    if row.roots:
        return "it does not serve every root"
    inside = row.least <= (need.nbytes or 0) <= (row.most or NEVER)
    return "" if inside else "it is for messages of other sizes"
