"""The interpreter: the compiled function that runs the rows of any program.

It knows the opcodes of `Code` and nothing of algorithms, operators or element types. Reductions are calls of a kernel's address, messages
calls of addresses in the MPI library, so that one cached machine code serves Open MPI and MPICH. The interpreter never blocks: it returns
after a while without progress and is called again, so that Python sees signals. All state is in arrays: a collective may be left and taken
up.
"""

from typing import Any

from numba import njit

from hpcoll.base.sizes import CLAMP, FLOOR, NOT_NEGATIVE, OTHER, ROOM, SAME, STORE
from hpcoll.runtime.engine.compiled import checks
from hpcoll.runtime.engine.compiled.checks import (
    alarmed,
    note_call,
    note_end,
    note_lingered,
    note_spent,
    sign_messages,
)
from hpcoll.runtime.engine.compiled.ffi import (
    call_with_address,
    exchange,
    pointer,
    sched_yield,
    store_release,
    usleep,
)
from hpcoll.runtime.engine.compiled.gpu_ops import begin_gpu, enter, leave, run_gpu
from hpcoll.runtime.engine.compiled.local_ops import copy, last_tick, nanoseconds, on_core, run_local
from hpcoll.runtime.engine.compiled.mpi_ops import let_mpi_move, run_mpi
from hpcoll.runtime.engine.compiled.shm_ops import begin_shm, end_shm, run_shm
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import Code

_COPY, _STAGE, _RECORD, _SYNC = int(Code.COPY), int(Code.STAGE), int(Code.RECORD), int(Code.SYNC)
_ONE_SHOT = int(Code.ONE_SHOT)
_SHORT_NBYTES = 4096  # of a call whose time counts from its first messages on
_NONE = -1  # a count that no call has


@njit(nogil=True)
def _execute(address, row, lane):  # type: ignore[no-untyped-def]
    """Run a row by the module that has its operation: 1 when it is done, 0 while it has to wait, -1 when it failed."""
    code = row[f.CODE]
    if pointer(address)[f.GPU] != 0 and (
        _COPY <= code <= _STAGE or _RECORD <= code <= _SYNC or code >= _ONE_SHOT
    ):
        return run_gpu(address, row, lane)
    if code >= _STAGE:
        return run_shm(address, row, lane)
    if code >= _COPY:
        return run_local(address, row, lane)
    return run_mpi(address, row, lane)


@njit(nogil=True)
def advance(address):  # type: ignore[no-untyped-def]
    """Run every lane in flight as far as it goes: 1 when something moved, 0 when nothing did, -1 when MPI or the GPU failed."""
    state = pointer(address)
    if state[f.GPU] == 0:
        return _run_lanes(address)
    moved = -1
    if state[f.ERROR] == 0:
        code = enter(state)
        if code:  # else left alone: another thread may have given it up meanwhile
            state[f.ERROR] = -code
        moved = -1 if state[f.ERROR] else _run_lanes(address)
        leave(state)
    return moved


@njit(nogil=True)
def advance_by_address(address):  # type: ignore[no-untyped-def]
    """Call `advance`, which is compiled by itself, so that two processes can compile the engine at once."""
    return call_with_address(pointer(address)[f.ADVANCE], (address,))


def _runner(*, notes: bool) -> Any:
    """Return the compiled function that runs all lanes in flight, and notes each row that is done if it is to."""

    @njit(nogil=True)
    def run_lane(address, lane, row):  # type: ignore[no-untyped-def]
        """Run a lane from a row on; return the row that waits, or the lane's end; -1 when one failed."""
        state = pointer(address)
        end = pointer(state[f.LANES])[3 * lane + 1]
        while row < end:
            at = state[f.ROWS] + 8 * f.NCOLUMNS * row
            done = _execute(address, pointer(at), lane)
            if done < 0:
                return -1
            if done == 0:
                return row
            if notes:
                checks.note_step(state, lane, at, nanoseconds(address))
            row += 1
        return row

    @njit(nogil=True)
    def run_lanes(address):  # type: ignore[no-untyped-def]
        """Run all lanes once; return as `advance`."""
        state = pointer(address)
        nlanes, window = state[f.NLANES], state[f.WINDOW]
        window_slots, lanes = pointer(state[f.WINDOW_SLOTS]), pointer(state[f.LANES])
        moved = 0
        for slot in range(window):
            lane, row = window_slots[2 * slot], window_slots[2 * slot + 1]
            if lane >= nlanes:
                continue
            reached = run_lane(address, lane, row)
            if reached < 0:
                return -1
            if reached != row or reached == lanes[3 * lane + 1]:
                moved = 1
            if reached == lanes[3 * lane + 1]:
                state[f.ENDED] += 1
                lane += window
                window_slots[2 * slot] = lane
                reached = lanes[3 * lane] if lane < nlanes else 0
            window_slots[2 * slot + 1] = reached
        if not moved and state[f.RINGS] and state[f.REQUESTS_PER_LANE]:
            # lanes may wait for local peers alone, and these for what MPI has yet to send for this rank
            let_mpi_move(address)
        return moved

    return run_lanes


_run_lanes, _note_lanes = _runner(notes=False), _runner(notes=True)


@njit(nogil=True)
def advance_noting(address):  # type: ignore[no-untyped-def]
    """Run every lane as `advance`, where no buffer is in GPU memory, and note the steps."""
    if checks.is_new(pointer(address)):
        checks.begin_steps(pointer(address), nanoseconds(address))
    return _note_lanes(address)


@njit(nogil=True)
def resize(address, counts):  # type: ignore[no-untyped-def]
    """Fit an engine's program to a call's counts, at an address; nobody else may run it meanwhile.

    `DONE`; `UNFIT` where its conditions do not hold, `NO_ROOM` where scratch is too short: then it is for no counts.
    """
    state, given = pointer(address), pointer(counts)
    variables = pointer(state[f.COUNTS])
    same = True
    for i in range(state[f.NCOUNTS]):
        same &= variables[1 + i] == given[i]
        variables[1 + i] = given[i]
    if same:
        return f.DONE
    status = _evaluate(address, variables)
    if status != f.DONE:
        variables[1] = _NONE
    return status


@njit(nogil=True)
def _evaluate(address, variables):  # type: ignore[no-untyped-def]
    """Run the records."""
    state = pointer(address)
    at, end, defined = state[f.RECORDS], state[f.RECORDS_END], 1 + state[f.NCOUNTS]
    while at < end:
        record = pointer(at)
        kind, argument, nterms, total = record[0], record[1], record[2], 0
        for i in range(nterms):
            total += record[3 + 2 * i] * variables[record[4 + 2 * i]]
        at += 8 * (3 + 2 * nterms)
        if kind == STORE:
            pointer(address + argument)[0] = total
        elif kind == FLOOR:
            variables[defined] = total // argument
            defined += 1
        elif kind == CLAMP:
            variables[defined] = min(total, 0)
            defined += 1
        elif kind == ROOM:
            if total > pointer(address + argument)[0]:
                state[f.NEEDED] = total
                return f.NO_ROOM
        elif (
            (kind == SAME and total != 0)
            or (kind == OTHER and total == 0)
            or (kind == NOT_NEGATIVE and total < 0)
        ):
            return f.UNFIT
    return f.DONE


@njit(nogil=True)
def begin(address, input_address, output_address):  # type: ignore[no-untyped-def]
    """Set a call's buffers, put the first lanes into their window slots, and run them as far as they go; return as `advance`.

    -1 also where another rank's call has failed. The call is noted behind its first messages, which would wait for that otherwise. A short
    one's time counts from there, too; a longer one's, which may have copied much by then, from the start.
    """
    state = pointer(address)
    window_slots, lanes = pointer(state[f.WINDOW_SLOTS]), pointer(state[f.LANES])
    state[f.INPUT], state[f.OUTPUT], state[f.ENDED], state[f.STARTED] = input_address, output_address, 0, 0
    if state[f.LEDGER_NBYTES] > _SHORT_NBYTES:
        state[f.STARTED] = nanoseconds(address)
    if state[f.COPY_NBYTES]:
        copy(state, state[f.COPY], input_address, state[f.COPY_NBYTES])
        state[f.INPUT] = state[f.COPY]
    for slot in range(state[f.WINDOW]):
        window_slots[2 * slot], window_slots[2 * slot + 1] = slot, lanes[3 * slot]
    if state[f.GPU]:
        state[f.ERROR] = state[f.ERROR] or -begin_gpu(state)  # another thread may have given it up
    if state[f.RINGS]:
        begin_shm(address)
    if state[f.LOG]:
        if state[f.FORM] & f.PART == 0:
            sign_messages(state)
        if alarmed(state):
            state[f.ERROR] = f.ALARMED
    moved = -1 if state[f.ERROR] == f.ALARMED else advance_by_address(address)
    state[f.STARTED] = state[f.STARTED] or nanoseconds(address)
    if state[f.LOG] and state[f.FORM] & f.PART == 0:
        note_call(state)
    return moved


@njit(nogil=True)
def run(address, input_address, output_address, counts):  # type: ignore[no-untyped-def]
    """Run a program's lanes on the buffers INPUT and OUTPUT; the caller has released the GIL.

    ``counts`` is the address of the call's counts, or `AS_BEFORE` for those of the last one; `GO_ON` to go on. The answer is `DONE`;
    `PENDING` when nothing has moved for a while; `FAILED` when MPI returned an error. `BUSY` while something else runs on what this engine
    needs alone, or an answer of `resize`: nothing has happened then.
    """
    if counts == f.GO_ON:
        # it has waited for long: sleep between looks, until something moves
        return _go_on(address, pointer(address)[f.YIELDS])
    if not exchange(pointer(address)[f.LOCK], 0, 1):
        return f.BUSY
    return run_locked(address, input_address, output_address, counts)


@njit(nogil=True)
def run_locked(address, input_address, output_address, counts):  # type: ignore[no-untyped-def]
    """Run a program as `run`, where the caller has taken the lock."""
    state = pointer(address)
    status = resize(address, counts) if counts != f.AS_BEFORE else f.DONE
    if status != f.DONE:
        store_release(state[f.LOCK], 0)
        return status
    return _go_on(address, 0) if begin(address, input_address, output_address) >= 0 else f.FAILED


@njit(nogil=True)
def _go_on(address, idle):  # type: ignore[no-untyped-def]
    """Give lanes turns until all have ended; ``idle``: turns in which nothing has moved. The answer is one of `run`'s."""
    state, since, lingers, before = pointer(address), 0, 0, 0
    while state[f.ENDED] < state[f.NLANES]:
        moved = advance_by_address(address)
        if moved < 0:
            return f.FAILED
        idle, since = (0, 0) if moved else (idle + 1, since)
        looks = idle > state[f.SPINS] and idle % f.LOOKS == 0
        if looks:
            # a peer may be late because its message to this rank, or its access to a window here, needs that
            let_mpi_move(address)
        if looks and idle > state[f.YIELDS]:
            usleep(state[f.USLEEP], (1,))
        elif idle > state[f.STAYS]:
            sched_yield(state[f.SCHED_YIELD], ())
        elif not looks:
            continue
        # A yield can take milliseconds where others want the core; and 200,000 passes 0.2 to 0.6 s, with MPICH between emulated hosts.
        now = last_tick(state[f.CLOCK_GETTIME], address + 8 * f.CLOCK)
        since = since or now
        if lingers == 0:
            lingers, before = nanoseconds(address), on_core(address)
        if now - since > f.STRETCH_NS:
            note_lingered(state, nanoseconds(address) - lingers, on_core(address) - before)
            return f.PENDING
    account, elapsed = pointer(state[f.ACCOUNT]), nanoseconds(address) - state[f.STARTED]
    if lingers:
        note_lingered(state, state[f.STARTED] + elapsed - lingers, on_core(address) - before)
    if state[f.TURNS] and state[f.LEDGER_NBYTES] > _SHORT_NBYTES:
        end_shm(state, elapsed)
    status, nbytes = f.DONE, state[f.LEDGER_NBYTES]
    if state[f.FORM] & f.CELLS:
        status, nbytes = _look_at_cells(state)
    if status == f.DONE and state[f.FORM] & f.PART == 0:
        note_end(state, state[f.STARTED] + elapsed)
        note_spent(state, elapsed)
    account[0] += state[f.FORM] & f.PART == 0
    account[1] += elapsed
    account[2] += nbytes
    store_release(state[f.LOCK], 0)
    return status


@njit(nogil=True)
def _look_at_cells(state):  # type: ignore[no-untyped-def]
    """Return the status of a call of cells that is over, and this rank's bytes, for the ledger.

    `SPECIAL`: a cell is flagged; `UNLIKE`: ranks that combined what came, each by itself, might get different objects; else `DONE`.
    """
    words, nbytes, kinds = 0, 0, state[f.KINDS]
    for i in range(state[f.CELLS_RECEIVED]):
        cell = pointer(state[f.OUTPUT] + i * state[f.CELL_NBYTES])
        words, kinds = words | cell[0], kinds & cell[1]
    if state[f.CELLS_SENT] == 0:
        nbytes = words & f.CELL_FLAG - 1
    for i in range(state[f.CELLS_SENT]):
        word = pointer(state[f.INPUT] + i * state[f.CELL_NBYTES])[0]
        words, nbytes = words | word, nbytes + (word & f.CELL_FLAG - 1)
    if words & f.CELL_FLAG:
        return f.SPECIAL, nbytes
    return f.UNLIKE if state[f.KINDS] and kinds & f.ANY_KIND == 0 else f.DONE, nbytes
