"""A choice of algorithm, and the properties of a call on which it depends; `hpcoll.selection.choose` chooses."""

from typing import NamedTuple

from hpcoll.analysis.cost import ONE_HOST, Levels
from hpcoll.base.dtypes import BYTES
from hpcoll.schedules.graph import Graph
from hpcoll.schedules.placement import Nodes
from hpcoll.schedules.row import Algorithm


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
    registered: tuple[Algorithm, ...] = ()  # rows that are not the package's, among which the model chooses, too
