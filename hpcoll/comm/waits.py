"""For which ranks an engine waits, and at which step."""

from collections.abc import Sequence

from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import Code

_LOCAL = (Code.AWAIT, Code.POST, Code.DRAIN, Code.UNREAD)


def awaited(engine: HostEngine, local_ranks: Sequence[int]) -> list[int]:
    """Ranks of the communicator for which lanes in flight wait, in order.

    Args:
        engine: That does not move just now; another thread may.
        local_ranks: Rank of each local rank.
    """
    found = set()
    for _, row in engine.waiting_rows():
        code, peer = int(row[f.CODE]), -1
        if code in _LOCAL:
            peer = local_ranks[int(row[f.LOCAL_PEER])]
        elif code == Code.WAIT:
            peer = engine.peer_of(row)
        found |= {peer} if peer >= 0 else set()
    return sorted(found)
