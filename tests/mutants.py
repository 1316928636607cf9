"""The table of `mutations.py`: ways to break the runtime by one line, and which part of the short run should notice first.

A text must occur once in its file. `mutations.py --check` says which do not any more; then point the row at where the line has gone.
"""

from typing import NamedTuple

ENGINE, PROGRAM, COMM = "hpcoll/runtime/engine", "hpcoll/runtime/program", "hpcoll/comm"


class Mutant(NamedTuple):
    """A break: a text of a file and what stands in its place.

    Attributes:
        first: The part of the short run that is tried first: ``unit FILE...``, or an MPI library, ranks and files of tests/mpi.
    """

    name: str
    file: str
    old: str
    new: str
    first: str


MUTANTS = (
    Mutant(
        "wrong offset: all segments work on the first one",
        f"{ENGINE}/compiled/local_ops.py",
        "return state[f.INPUT + buffer] + pointer(state[f.LANES])[3 * lane + 2] + displ",
        "return state[f.INPUT + buffer] + displ",
        "openmpi 2 test_collectives.py",
    ),
    Mutant(
        "request not waited for",
        f"{ENGINE}/compiled/mpi_ops.py",
        "if error == 0 and state[f.FLAG] & _INT == 0:",
        "if error != 0 and state[f.FLAG] & 0xFFFFFFFF == 0:",
        "openmpi 4 test_hierarchical.py",
    ),
    Mutant(
        "missing wait: memory is written while a send still reads it",
        f"{PROGRAM}/lowering.py",
        "                self._wait_sends(sends, item)\n",
        "",
        "unit test_lowering.py",
    ),
    Mutant(
        "swapped operands",
        f"{ENGINE}/compiled/local_ops.py",
        "16 * (row[f.FIRST_SOURCE] + i)",
        "16 * (row[f.FIRST_SOURCE] + row[f.NSOURCES] - 1 - i)",
        "openmpi 2 test_operators.py",
    ),
    Mutant(
        "lost acknowledgement",
        f"{ENGINE}/compiled/shm_ops.py",
        "store_release(at, pointer(at)[0] + 1)",
        "store_release(at, pointer(at)[0])",
        "openmpi 2 test_collectives.py",
    ),
    Mutant(
        "off by one: the last element of a large result is not combined",
        f"{ENGINE}/compiled/local_ops.py",
        "n = min(block, count - lo)",
        "n = min(block, count - lo - 1)",
        "openmpi 2 test_shm.py",
    ),
    Mutant(
        "ring slot written before its message was used",
        f"{ENGINE}/compiled/shm_ops.py",
        "_unread(rings, peer, slot) >= RING_SLOTS:",
        "_unread(rings, peer, slot) > RING_SLOTS:",
        "openmpi 2 test_collectives.py test_shm.py",
    ),
    Mutant(
        "staging slot taken again before its messages were used",
        f"{ENGINE}/compiled/shm_ops.py",
        "        if unread == 0:\n",
        "        if unread <= RING_SLOTS:\n",
        "openmpi 2 test_shm.py test_collectives.py",
    ),
    Mutant(
        "wrong root: the schedule of a pipelined call starts at rank 0",
        f"{COMM}/plans/segmentation.py",
        "steps = schedule(row, nranks, rank, call.root, nchunks)",
        "steps = schedule(row, nranks, rank, 0, nchunks)",
        "openmpi 2 test_collectives.py",
    ),
    Mutant(
        "missing average: in flight nothing is done at the end",
        f"{COMM}/requests/operation.py",
        "            if self.call.finish is not None:\n",
        "            if self.call.finish is not None and self.call.copied:\n",
        "openmpi 2 test_nonblocking.py",
    ),
    Mutant(
        "call cache ignores the operator",
        f"{ENGINE}/compiled/call_lookup.py",
        "if pointer(at)[c.OP] != op:",
        "if pointer(at)[c.OP] == 0:",
        "openmpi 2 test_call_cache.py",
    ),
    Mutant(
        "call cache ignores the element type",
        f"{ENGINE}/compiled/spec_reader.py",
        "    if fields[c.DESCR] != wanted[c.DTYPE] and not _is_alike",
        "    if False and not _is_alike",
        "openmpi 2 test_call_cache.py",
    ),
    Mutant(
        "call cache ignores contiguity",
        f"{ENGINE}/compiled/spec_reader.py",
        "if fields[c.FLAGS] & wanted[c.FLAGS_OF] != wanted[c.FLAGS_OF]:",
        "if fields[c.FLAGS] == 0:",
        "openmpi 2 test_call_cache.py",
    ),
    Mutant(
        "read in place what is overwritten later",
        f"{ENGINE}/compiled/local_ops.py",
        "state[f.WHERE_INPUT + row[f.BUFFER]] if row[f.IN_PLACE] else -1",
        "state[f.WHERE_INPUT + row[f.BUFFER]] if row[f.BUFFER] < 2 else -1",
        "openmpi 4 test_symmetric.py",
    ),
    Mutant(
        "own memory: each piece of what is combined is the first",
        f"{ENGINE}/compiled/local_ops.py",
        "source = _source(state, row, i, lane) + lo * size",
        "source = _source(state, row, i, lane)",
        "openmpi 2 test_cross_memory.py",
    ),
    Mutant(
        "past the caches: of a block that is handed out with the result only a line is",
        f"{ENGINE}/compiled/local_ops.py",
        "copy(state, staged + lo * size, state[f.BLOCK], n * size)",
        "copy(state, staged + lo * size, state[f.BLOCK], 64)",
        "openmpi 2 test_shm.py",
    ),
    Mutant(
        "missing DRAIN: symmetric memory is given back while peers read it",
        f"{PROGRAM}/lowering.py",
        "        self.rows += [(Code.DRAIN, peer, 0, buffer) for peer, buffer in sorted(posted)]\n",
        "",
        "unit test_lowering_local_peers.py",
    ),
    Mutant(
        "wrong tag: lanes in flight share one",
        f"{ENGINE}/compiled/mpi_ops.py",
        "state[f.CHECKED_TAG] + slot, state[f.COMM]",
        "state[f.CHECKED_TAG], state[f.COMM]",
        "openmpi 4 test_hierarchical.py",
    ),
    Mutant(
        "GPU event not recorded",
        f"{ENGINE}/compiled/gpu_ops.py",
        "    elif code == _RECORD:\n",
        "    elif code == _RECORD:\n        error = 0\n    elif code < 0:\n",
        "openmpi 2 test_gpu_cases.py",
    ),
    Mutant(
        "memory for a put is announced before an earlier message to the same peer",
        f"{PROGRAM}/lowering.py",
        "max(free, announced.get(item.peer, 0))",
        "free",
        "unit test_lowering_gpu.py",
    ),
    Mutant(
        "acknowledgements are put off for ever",
        f"{PROGRAM}/gpu.py",
        "if self._used and (hands_out or",
        "if self._used and (False and hands_out or",
        "unit test_lowering_gpu.py",
    ),
    Mutant(
        "GPU streams do not wait for the caller's",
        f"{ENGINE}/compiled/gpu_ops.py",
        "for slot in range(gpu[f.NSTREAMS]):",
        "for slot in range(1, gpu[f.NSTREAMS]):",
        "openmpi 2 test_gpu_cases.py",
    ),
    Mutant(
        "persistent handle still active after Wait",
        f"{COMM}/requests/persistent_request.py",
        "        self._cell[0] = _NULL  # it has ended in `Start`\n",
        "",
        "openmpi 2 test_persistent.py",
    ),
    Mutant(
        "progress ticket: operations of one message context overtake",
        f"{ENGINE}/compiled/progress.py",
        "load_acquire(fields[p.TICKETS]) == fields[p.TICKET]",
        "load_acquire(fields[p.TICKETS]) <= fields[p.TICKET]",
        "openmpi 2 test_nonblocking.py test_in_flight.py",
    ),
    Mutant(
        "v-form displacement: blocks of varying size are taken as packed",
        f"{PROGRAM}/chunks.py",
        "[(displ, cut(count)) for displ, count in blocks]",
        "[(sum(cut(n) for _, n in blocks[:i]), cut(blocks[i][1])) for i in range(len(blocks))]",
        "openmpi 2 test_typed_blocks.py",
    ),
    Mutant(
        "in-place call reads what it has overwritten",
        f"{ENGINE}/compiled/interpreter.py",
        "        state[f.INPUT] = state[f.COPY]\n",
        "",
        "openmpi 2 test_symmetric.py",
    ),
    Mutant(
        "messages of other calls are taken",
        f"{ENGINE}/compiled/shm_ops.py",
        "if announced >> _LENGTH_BITS & _CHECKS != state[f.CHECKED]:",
        "if announced < 0:",
        "openmpi 2 test_mismatch.py",
    ),
    Mutant(
        "calls before are forgotten",
        f"{ENGINE}/compiled/checks.py",
        "log[f.CALLS], log[f.CHAIN] = number, _spread(chain ^ _fingerprint(state, _compared(signature)))",
        "log[f.CALLS] = number",
        "openmpi 2 test_mismatch.py",
    ),
    Mutant(
        "calls whose messages do not meet are not compared",
        f"{COMM}/diagnosis/watchdog.py",
        "if doubted and self._doubts:",
        "if False:",
        "openmpi 2 test_mismatch.py",
    ),
    Mutant(
        "tags that do not tell calls apart",
        f"{ENGINE}/compiled/checks.py",
        "state[f.CHECKED_TAG] = state[f.TAG] + check * state[f.TAG_STEP]",
        "state[f.CHECKED_TAG] = state[f.TAG]",
        "openmpi 2 test_mismatch.py",
    ),
    Mutant(
        "a message that is too short is taken",
        f"{ENGINE}/compiled/mpi_ops.py",
        "error = 0 if fits else state[f.TRUNCATED]",
        "error = 0",
        "openmpi 2 test_mismatch.py",
    ),
    Mutant(
        "types of what is moved are not compared",
        f"{ENGINE}/compiled/checks.py",
        "signature & _ELEMENT > f.ONE_BYTE << f.ELEMENT_AT",
        "signature & _ELEMENT > 63 << f.ELEMENT_AT",
        "openmpi 2 test_mismatch.py",
    ),
    Mutant(
        "derived datatypes are of no type",
        f"{COMM}/arguments/buffer_specs.py",
        'numbers.pop() if len(numbers) == 1 else ""',
        '""',
        "openmpi 2 test_mismatch.py",
    ),
    Mutant(
        "who waits in Waitall is not seen",
        f"{COMM}/requests/watchdog_thread.py",
        "requests = waited_for() if old else []",
        "requests = waited_for() if not old else []",
        "openmpi 2 test_mismatch.py",
    ),
    Mutant(
        "ranks of other nodes get no answer",
        f"{COMM}/diagnosis/control_plane.py",
        'self._send(source, {"known": [self._known(*what["ask"])]})',
        "pass",
        "openmpi 1 test_peer_failures.py",
    ),
    Mutant(
        "who leaves says nothing",
        f"{COMM}/status/rank_status.py",
        "    RANK_STATUS.leave(",
        "    _ = (",
        "openmpi 1 test_peer_failures.py",
    ),
    Mutant(
        "receives of a failed call cancelled while other threads are in the library",
        f"{COMM}/requests/operation.py",
        "with board().held():",
        "with threading.Lock():",
        "openmpi 2 test_mismatch.py",
    ),
    Mutant(
        "a team's communicator freed while control messages are under way",
        f"{COMM}/team/team.py",
        "not self.channel.has_ended()",
        "self.channel.has_ended() is None",
        "openmpi 2 test_team_free.py",
    ),
    Mutant(
        "a team's communicator freed after a call has failed",
        f"{COMM}/context/team_cache.py",
        "resources.team.failed = resources.team.uses_mpi",
        "resources.team.failed = False",
        "mpich 3 test_team_free.py",
    ),
    Mutant(
        "a rank that failed is named by its rank in COMM_WORLD",
        f"{COMM}/team/bootstrap.py",
        'return f"rank {world.index(told[0])} {told[1]}"',
        'return f"rank {told[0]} {told[1]}"',
        "openmpi 1 test_ulfm.py",
    ),
    Mutant(
        "what the library says of a failed rank is no PeerFailed at a first use",
        f"{COMM}/team/bootstrap.py",
        "if not tells_of_failure(error, comm):",
        "if True:",
        "openmpi 1 test_ulfm.py",
    ),
    Mutant(
        "a notice written over the one that holds",
        "hpcoll/runtime/telemetry/status_page.py",
        "begin = _TURN_NBYTES + turn % 2 * NOTICE_NBYTES",
        "begin = _TURN_NBYTES",
        "unit test_status_slots.py",
    ),
    Mutant(
        "a barrier of PMI that ranks leave before all are in it",
        "hpcoll/launch/pmi.py",
        "if self._arrived == self._nranks:",
        "if True:",
        "unit test_pmi.py",
    ),
    Mutant(
        "whoever connects is let in, whatever key it shows",
        "hpcoll/base/authenticated.py",
        "if hmac.compare_digest(proof, _proof(self._key, _CLIENT, nonces)):",
        "if True:",
        "unit test_key_value_server.py",
    ),
)
