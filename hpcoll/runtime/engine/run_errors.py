"""The errors that runs of an engine raise, by their code."""

import os

from mpi4py import MPI

from hpcoll.base.errors import TransportError
from hpcoll.runtime.program import fields as f


def run_error(code: int, came: int, awaited: int) -> TransportError:
    """Return the error of a run.

    Args:
        code: Of the MPI library, or one of `hpcoll.runtime.program.fields`.
        came: Bytes of the last message, or `MORE`.
        awaited: Bytes that it should have had.
    """
    if code == f.FULL:
        return TransportError(
            "the system has no more shared memory for messages between ranks of a node (/dev/shm)", code=code
        )
    if code >= f.UNREADABLE:
        peer, number = divmod(code - f.UNREADABLE, 1 << 16)
        text = f"the memory of local rank {peer} cannot be read ({os.strerror(number)}): it has ended, or freed what it sends"
        return TransportError(text, code=code)
    if code in (f.MISMATCH, f.ALARMED, f.GIVEN_UP):
        return TransportError("ranks gave up", code=code)
    what = "more bytes than expected," if came == f.MORE else f"{came} bytes, expected"
    lengths = f"; from another rank came {what} {awaited}" if came != awaited and is_truncated(code) else ""
    return TransportError(MPI.Get_error_string(code) + lengths, code=code)


def is_truncated(code: int) -> bool:
    """Say whether a run failed because a message was of another length."""
    return 0 < code < f.UNMAPPED and MPI.Get_error_class(code) == MPI.ERR_TRUNCATE
