"""The host engine: one compiled function that walks any program. Floor 5.

It knows five opcodes and nothing of algorithms, operators or element types: reductions are calls to a kernel's address,
messages are calls to addresses in the MPI library, so that one cached machine code serves Open MPI and
MPICH. It never blocks: it returns after a while without progress and is called again, which leaves Python the chance to
see a signal. All of its state is in one array, so that a collective may be left and taken up again.
"""

import ctypes
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from hpcoll.errors import TransportError
from hpcoll.once import once_per_node
from hpcoll.program import NCOLUMNS, Code, Program
from hpcoll.transports.mpi import Library

DONE, PENDING, FAILED = 0, 1, 2
_NAPS = 500  # passes in which a rank sleeps before Python gets a turn: some 30 ms

# Where things are in an engine's state array (int64). PLACES: per place of the window its lane and that lane's next row.
# INPUT, OUTPUT and SCRATCH are addresses in the order of `hpcoll.ir.Buffer`. ERROR is the MPI library's code when FAILED, FLAG what
# MPI_Test answers, and from OPERANDS on there is room for the addresses of the widest reduction's sources.
(
    _NLANES, _WINDOW, _ROWS, _SOURCES, _LANES, _PLACES, _REQUESTS, _REQUESTS_PER_LANE, _REQUEST_NBYTES, _SCRATCH_PER_LANE,
    _INPUT, _OUTPUT, _SCRATCH, _COMM, _BYTE, _STATUS_IGNORE, _ISEND, _IRECV, _TEST, _KERNEL, _MEMCPY, _SCHED_YIELD, _USLEEP,
    _ENDED, _ERROR, _FLAG, _SPINS, _YIELDS, _OPERANDS,
) = range(29)  # fmt: skip
_CODE_SEND, _CODE_WAIT, _CODE_COPY = int(Code.SEND), int(Code.WAIT), int(Code.COPY)

_INT, _LONG, _VOID = ir.IntType(32), ir.IntType(64), ir.VoidType()


def _foreign(result: ir.Type, *parameters: ir.Type) -> Any:
    """A call of a C function through its address; arguments are int64, narrowed where the C type is int."""

    @intrinsic
    def call(typingctx, address, arguments):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
            function = builder.inttoptr(values[0], ir.FunctionType(result, parameters).as_pointer())
            unpacked = cgutils.unpack_tuple(builder, values[1])
            narrowed = [builder.trunc(v, t) if t is _INT else v for v, t in zip(unpacked, parameters, strict=True)]
            returned = builder.call(function, narrowed)
            return returned if result is _INT else context.get_constant(types.int32, 0)

        return types.int32(address, arguments), codegen

    return call


@intrinsic
def _pointer(typingctx, address):  # type: ignore[no-untyped-def]
    """The int64s at an address."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int64)(types.int64), codegen


_transfer = _foreign(_INT, _LONG, _INT, _LONG, _INT, _INT, _LONG, _LONG)  # buffer, count, datatype, peer, tag, comm, request
_test = _foreign(_INT, _LONG, _LONG, _LONG)  # request, flag, status
_fold = _foreign(_VOID, _LONG, _LONG, _LONG, _LONG)  # destination, sources, number of sources, count
_memcpy = _foreign(_VOID, _LONG, _LONG, _LONG)
_sched_yield = _foreign(_INT)
_usleep = _foreign(_INT, _INT)


@njit(nogil=True, inline="always")
def _address(state, buffer, displ, lane):  # type: ignore[no-untyped-def]
    """Address of a displacement in one of the three buffers, seen from a lane."""
    if buffer == 2:
        return state[_SCRATCH] + (lane % state[_WINDOW]) * state[_SCRATCH_PER_LANE] + displ
    return state[_INPUT + buffer] + _pointer(state[_LANES])[3 * lane + 2] + displ


@njit(nogil=True)
def _local(address, row, lane):  # type: ignore[no-untyped-def]
    """COPY and REDUCE."""
    state = _pointer(address)
    operands = address + 8 * _OPERANDS
    destination = _address(state, row[1], row[2], lane)
    if row[0] == _CODE_COPY:
        _memcpy(state[_MEMCPY], (destination, _address(state, row[3], row[4], lane), row[5]))
        return
    sources = _pointer(state[_SOURCES])
    for i in range(row[5]):
        at = 2 * (row[4] + i)
        state[_OPERANDS + i] = _address(state, sources[at], sources[at + 1], lane)
    _fold(state[_KERNEL], (destination, operands, row[5], row[3]))


@njit(nogil=True)
def _run_lane(address, lane, row):  # type: ignore[no-untyped-def]
    """Walk a lane from a row on; returns the row that waits, or the lane's end; -1 when MPI failed."""
    state = _pointer(address)
    place = lane % state[_WINDOW]
    requests = state[_REQUESTS] + place * state[_REQUESTS_PER_LANE] * state[_REQUEST_NBYTES]
    end = _pointer(state[_LANES])[3 * lane + 1]
    flag = address + 8 * _FLAG
    while row < end:
        at = _pointer(state[_ROWS] + 8 * NCOLUMNS * row)
        code = at[0]
        if code >= _CODE_COPY:
            _local(address, at, lane)
            row += 1
            continue
        request = requests + at[1] * state[_REQUEST_NBYTES]
        if code == _CODE_WAIT:
            error = _test(state[_TEST], (request, flag, state[_STATUS_IGNORE]))
            if error == 0 and state[_FLAG] & 0xFFFFFFFF == 0:
                return row
        else:
            function = state[_ISEND] if code == _CODE_SEND else state[_IRECV]
            data = _address(state, at[3], at[4], lane)
            error = _transfer(function, (data, at[5], state[_BYTE], at[2], place, state[_COMM], request))
        if error != 0:
            state[_ERROR] = error
            return -1
        row += 1
    return row


def _walk(address, input_address, output_address, start):  # type: ignore[no-untyped-def]
    """Run a program's lanes; the GIL is released while messages travel.

    Args:
        address: `HostEngine.address`.
        input_address, output_address: Where INPUT and OUTPUT start; ignored when going on.
        start: 1 to begin a call, 0 to go on with one.
    Returns:
        `DONE`; `PENDING` when nothing has moved for a while; `FAILED` when MPI returned an error.
    """
    state = _pointer(address)
    nlanes, window = state[_NLANES], state[_WINDOW]
    places, lanes = _pointer(state[_PLACES]), _pointer(state[_LANES])
    if start:
        state[_INPUT], state[_OUTPUT], state[_ENDED] = input_address, output_address, 0
        for place in range(window):
            places[2 * place], places[2 * place + 1] = place, lanes[3 * place]
    idle = 0
    while state[_ENDED] < nlanes:
        moved = False
        for place in range(window):
            lane, row = places[2 * place], places[2 * place + 1]
            if lane >= nlanes:
                continue
            reached = _run_lane(address, lane, row)
            if reached < 0:
                return FAILED
            moved |= reached != row
            if reached == lanes[3 * lane + 1]:
                moved = True
                state[_ENDED] += 1
                lane += window
                places[2 * place] = lane
                reached = lanes[3 * lane] if lane < nlanes else 0
            places[2 * place + 1] = reached
        idle = 0 if moved else idle + 1
        if idle > state[_YIELDS]:
            _usleep(state[_USLEEP], (1,))
        elif idle > state[_SPINS]:
            _sched_yield(state[_SCHED_YIELD], ())
        if idle > state[_YIELDS] + _NAPS:
            return PENDING
    return DONE


with once_per_node("engine", __file__):
    advance = njit("int64(int64, int64, int64, int64)", nogil=True, cache=True)(_walk)


def _function_address(name: str) -> int:
    address = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    assert address is not None
    return address


class Patience(NamedTuple):
    """How a rank waits: passes without progress that it spins, then passes in which it yields the processor; then it sleeps."""

    spins: int
    yields: int


ALONE = Patience(200, 2000)  # a core of its own
CROWDED = Patience(5, 50)  # more ranks than cores: whoever is waited for may need this core


class HostEngine:
    """A program bound to a communicator, a kernel and scratch: ready to run on any buffers of its sizes.

    Args:
        program: What to run.
        library: The MPI library.
        comm: Handle of the communicator on which the messages travel; nothing else may use it.
        kernel: Address of the reduction kernel, or 0 when the program has no reductions.
        patience: How a rank waits.
    """

    def __init__(self, program: Program, library: Library, comm: int, kernel: int, patience: Patience) -> None:
        nsources = int(program.rows[program.rows[:, 0] == Code.REDUCE, 5].max(initial=0))
        self.state = np.zeros(_OPERANDS + nsources, np.int64)
        self.program = program
        self.scratch_nbytes = program.window * program.scratch_nbytes
        self._places = np.zeros(2 * program.window, np.int64)
        self._requests = np.zeros(max(1, program.window * program.nrequests * library.request_nbytes), np.uint8)
        fields = {
            _NLANES: len(program.lanes), _WINDOW: program.window, _ROWS: program.rows.ctypes.data,
            _SOURCES: program.sources.ctypes.data, _LANES: program.lanes.ctypes.data,
            _PLACES: self._places.ctypes.data, _REQUESTS: self._requests.ctypes.data,
            _REQUESTS_PER_LANE: program.nrequests, _REQUEST_NBYTES: library.request_nbytes,
            _SCRATCH_PER_LANE: program.scratch_nbytes, _COMM: comm, _BYTE: library.byte,
            _STATUS_IGNORE: library.status_ignore, _ISEND: library.isend, _IRECV: library.irecv,
            _TEST: library.test, _KERNEL: kernel, _MEMCPY: _function_address("memcpy"),
            _SCHED_YIELD: _function_address("sched_yield"), _USLEEP: _function_address("usleep"),
            _SPINS: patience.spins, _YIELDS: patience.spins + patience.yields,
        }  # fmt: skip
        for field, value in fields.items():
            self.state[field] = value
        self.address = self.state.ctypes.data

    def bind_scratch(self, address: int) -> None:
        """Set where ``scratch_nbytes`` bytes of scratch are."""
        self.state[_SCRATCH] = address

    def go_on(self, status: int) -> None:
        """Run to the end what `advance` has begun.

        Args:
            status: What `advance` answered, not `DONE`.
        Raises:
            TransportError: the MPI library returned an error; messages may be left under way.
        """
        while status == PENDING:
            status = advance(self.address, 0, 0, 0)
        if status == FAILED:
            code = int(self.state[_ERROR])
            raise TransportError(f"MPI failed with error code {code}", code=code)
