"""The proof of a registered row at its first use: the schedules of all ranks, before any message leaves.

The program of a file is proven as it stands there, and again as the schedules that run in its place. A verdict that a row or program is
right is kept in the disk cache, by a digest of the schedules or the file, and of the verifier's source. So a later program writes the
schedules again, but does not run them.
"""

import hashlib
import json
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path

from hpcoll import analysis, formats, schedules
from hpcoll.analysis import prove
from hpcoll.analysis.verify import Proof
from hpcoll.base import disk_cache
from hpcoll.base.errors import ScheduleError
from hpcoll.formats.program import FileProgram
from hpcoll.formats.reading import prove_program
from hpcoll.schedules.ir import Schedule
from hpcoll.schedules.placement import Nodes
from hpcoll.schedules.row import Algorithm, schedule

CHUNKS = (1, 2, 3, 5)  # for which rows that take any number are compared between ranks
MOST_RANKS = 64  # for which commands that draw or simulate a row prove it first
_SAYS = "hpcoll: proving {} on {} ranks before its first use"


@lru_cache(maxsize=4096)
def proven(row: Algorithm, nranks: int, root: int = 0, nchunks: int = 1, nodes: Nodes = ()) -> str:
    """Prove a row for one number of ranks, root, number of chunks and placement, and return the digest of its schedules.

    ScheduleError: a schedule is wrong; the text names rank, step and cause.
    """
    try:
        every = [schedule(row, nranks, rank, root, nchunks, nodes) for rank in range(nranks)]
        key = digest(row, every, nodes)

        def verdict() -> bytes:
            prove.prove_schedules(row, every, nodes)
            return key.encode()

        disk_cache.kept(f"proof-{key}", verdict, _SAYS.format(row.key, nranks))
        return key
    except ScheduleError as error:
        fewest, first = prove.fewest_wrong(row, nranks, error)
        fewer = f"; {fewest} ranks are the fewest on which it is wrong" if fewest < nranks else ""
        refused = ScheduleError(
            f"{row.key} is refused on {nranks} ranks before any message leaves{fewer}: {first}"
        )
        refused.rank = first.rank
        refused.step = first.step
        refused.op = first.op
        raise refused from None


def refusal(row: Algorithm, nranks: int, root: int = 0, nodes: Nodes = ()) -> str:
    """Return why calls on so many ranks would refuse a row; empty: they would not, or more ranks than `MOST_RANKS` were not proven."""
    if row.builder is None or nranks > MOST_RANKS:
        return ""
    try:
        for nchunks in CHUNKS if row.chunked else (1,):
            proven(row, nranks, root, nchunks, nodes if row.placed else ())
    except ScheduleError as error:
        return str(error)
    return ""


def program_proof(program: FileProgram, content: bytes) -> Proof:
    """Prove the program of a file of that content, unless that has been done; raises ScheduleError as `prove_program`."""

    def verdict() -> bytes:
        return json.dumps(prove_program(program)).encode()

    name = hashlib.blake2b(_verifier() + content, digest_size=16).hexdigest()
    return Proof(*json.loads(disk_cache.kept(f"program-{name}", verdict, f"hpcoll: proving {program.path}")))


def digest(row: Algorithm, every: Sequence[Schedule], nodes: Nodes = ()) -> str:
    """Return a digest of all that a proof depends on."""
    made = hashlib.blake2b(_verifier(), digest_size=16)
    canonical = row.is_canonical(len(every), nodes)
    made.update(repr((row.collective, row.ordered, row.reproducible, canonical, row.uniform)).encode())
    for one in every:
        made.update(repr((one.nranks, one.root, one.nchunks, one.scratch, one.graph, one.links)).encode())
        for steps in one.channels:
            for op, peer, dst, srcs, first, put, after in steps:
                chunks = [
                    (int(chunk.buffer), chunk.index, chunk.n) for chunk in ((dst,) if dst else ()) + srcs
                ]
                made.update(b"%d %d %d %d %d %a %a;" % (op, peer, dst is not None, first, put, after, chunks))
            made.update(b"/")
    return made.hexdigest()


@cache
def _verifier() -> bytes:
    """Return a digest of the modules that read programs and prove schedules."""
    folders = [Path(str(module.__file__)).parent for module in (analysis, formats, schedules)]
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    return hashlib.blake2b(b"".join(path.read_bytes() for path in files), digest_size=16).digest()
