"""Flight records: the last calls of every communicator of this process, and where each is, as a file for ``hpcoll inspect``.

Compiled code notes each call that hpcoll runs (`hpcoll.runtime.telemetry.call_log`); what the MPI library serves is not noted. Files are
written into the folder that ``HPCOLL_RECORD`` names: when a call fails, and at ``SIGUSR2``.
"""

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from mpi4py import MPI

from hpcoll.base.files import write_file
from hpcoll.base.machine import program_words
from hpcoll.comm.diagnosis.peer_state import since_1970
from hpcoll.comm.plans.signature import Signature
from hpcoll.comm.status.blocked_call import BlockedCall, call_parts
from hpcoll.comm.status.names import place_text, region_text
from hpcoll.comm.status.rank_status import RANK_STATUS
from hpcoll.comm.team.resources import Resources, live_contexts
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.telemetry.call_log import CallLog
from hpcoll.selection.config import log

FORMAT = 1


def write_record(folder: str, why: str) -> Path | None:
    """Write the record of this process; None where the system does not let us, which is logged.

    Args:
        folder: Made if it is not there.
        why: For what reason.
    """
    import json

    world = MPI.COMM_WORLD
    path = Path(folder, f"rank{world.rank}.json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps(_record(why)), 0o600)  # it has the arguments of the program
    except Exception as error:  # the program ends by the error of its call, and not by this one
        log.warning("rank %d: no record of its calls: %s", world.rank, error)
        return None
    return path


def _record(why: str) -> dict[str, Any]:
    world = MPI.COMM_WORLD
    contexts = sorted(live_contexts, key=lambda context: str(context.resources.key))
    return {
        "format": FORMAT,
        "program": program_words(),
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "world_rank": world.rank,
        "world_size": world.size,
        "written": time.time(),
        "why": why,
        "doing": RANK_STATUS.doing,
        "communicators": [_of_communicator(context.resources) for context in contexts],
    }


def _of_communicator(resources: Resources) -> dict[str, Any]:
    calls = list[dict[str, Any]]()
    dropped = 0
    for place, message_context in enumerate(resources.every_message_context()):
        lane = f"{resources.form(message_context.index)} {place}".removesuffix(" 0")
        recorded = _of_log(
            resources, message_context.log, lane, RANK_STATUS.waits_of(resources.key, message_context.index)
        )
        calls += recorded
        dropped += message_context.log.ncalls - len(recorded)
    return {
        "id": resources.key,
        "name": resources.title,
        "rank": resources.rank,
        "ranks": list(resources.team.world_ranks),
        "dropped": dropped,
        "calls": sorted(calls, key=lambda call: float(call["begun"])),
    }


def _of_log(
    resources: Resources, call_log: CallLog, lane: str, waits: list[BlockedCall]
) -> list[dict[str, Any]]:
    """The calls that are remembered of one lane, in order."""
    calls = []
    first, records = call_log.records()
    for number, (word, count, begun, _, ended, names, *_) in enumerate(records.tolist(), first):
        wait = next((blocked for blocked in waits if blocked.number == number), None)
        calls.append(
            Signature.unpacked(word).record(count)
            | {
                "seq": number,
                "lane": lane,
                "counted": resources.counted(call_log.index, number),
                "begun": since_1970(1e-9 * begun),
                "ended": since_1970(1e-9 * ended) if ended else None,
                "state": "ended" if ended else "waiting",
                "step": wait.step if wait else "",
                "awaits": list(wait.awaits) if wait else [],
                "caller": call_parts(wait.what)[1] if wait else place_text(names >> f.PLACE_AT),
                "region": region_text(names & f.REGION_BITS),
            }
        )
    return calls


def record_on_signal(folder: str) -> None:
    """Write a record at each SIGUSR2, if nobody else has asked for that signal."""
    with contextlib.suppress(ValueError):  # not the main thread
        if signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
            signal.signal(signal.SIGUSR2, lambda *_: _record_and_say(folder))


def _record_and_say(folder: str) -> None:
    path = write_record(folder, "SIGUSR2")
    if path is not None:
        log.warning("rank %d: its calls are recorded in %s", MPI.COMM_WORLD.rank, path)
