"""Calls of the MPI library's own collectives from compiled code.

Types, counts and handles, which mpi4py looks up for each call, are kept from an earlier one. So the call cache finds and makes a call in
less time than mpi4py takes for its arguments.
"""

import numpy as np
from mpi4py import MPI

from hpcoll.runtime.program import call_fields as c
from hpcoll.runtime.program.fields import HISTORY
from hpcoll.runtime.telemetry.call_log import CallLog
from hpcoll.runtime.transports.mpi import function_address, handle

MAX_COUNT = 2**31 - 1  # of a vector or of one block


class MpiCall:
    """A collective of the MPI library with all arguments but the buffers' addresses and the count."""

    def __init__(
        self, function_name: str, arguments: str, at_root: str, comm: MPI.Intracomm, root: int, datatype: MPI.Datatype,
        op: MPI.Op | None, in_place: bool, account: np.ndarray, nbytes: int, log: CallLog, method: int,
    ) -> None:  # fmt: skip
        """Bind a C function.

        Args:
            function_name: Its name.
            arguments: ``c_arguments`` of its row in the table of methods.
            at_root: ``at_root`` of that row.
            comm: The caller's communicator.
            root: Its root.
            datatype: Of the elements.
            op: Operator, or None.
            in_place: The send buffer is ``MPI.IN_PLACE``.
            account: A line of the ledger.
            nbytes: Bytes that an element counts there.
            log: Notes that this rank is in the call.
            method: Number of the row, by which it does.
        """
        send, recv = _roles(at_root, comm.Get_rank() == root, in_place)
        values = {
            "count": 0, "type": handle(datatype), "op": 0 if op is None else handle(op), "root": root,
            "comm": handle(comm), "send": send if isinstance(send, int) else 0, "recv": recv if isinstance(recv, int) else 0,
        }  # fmt: skip
        names = arguments.split()
        self._account, self._log = account, log
        self._words = np.zeros(c.FIRST + c.NARGUMENTS, np.int64)
        self._words[c.FUNCTION], self._words[c.ACCOUNT] = function_address(function_name), account.ctypes.data
        self._words[c.HISTORY], self._words[c.METHOD] = log.fields[HISTORY], method
        self._words[c.CLOCK_GETTIME] = function_address("clock_gettime")
        self._words[c.FIRST : c.FIRST + len(names)] = [values[name] for name in names]
        places = {role: names.index(name) for name, role in (("send", send), ("recv", recv)) if name in names}
        self._words[c.SOURCE_AT], self._words[c.TARGET_AT] = places.get("source", -1), places.get("target", -1)
        self._words[c.COUNTS_AT] = sum(1 << i for i, name in enumerate(names) if name == "count")
        self._words[c.ELEMENT_NBYTES] = nbytes
        self.address = self._words.ctypes.data  # for `call_mpi`

    @property
    def error(self) -> int:
        """The latest error code of the MPI library."""
        return int(self._words[c.ERROR])


def _roles(at_root: str, is_root: bool, in_place: bool) -> tuple[str | int, str | int]:
    """Return the two buffers of the C function: ``source`` or ``target`` of `call_lookup.run_cached`, or a constant."""
    constant = int(MPI.IN_PLACE)
    if at_root == "recvbuf" and not is_root:
        return "target", 0
    if at_root == "sendbuf":
        return (("target", constant) if in_place else ("source", "target")) if is_root else (0, "target")
    return constant if in_place else "source", "target"
