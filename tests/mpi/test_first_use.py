"""The making of a communicator to which a rank never comes, or in which it breaks off: a named error on the others, in time.

Each test starts a job of its own, so they run once: where this one has a single rank.
"""

import pytest
from launching import STARTS_JOBS, command, finished, spoken

pytestmark = STARTS_JOBS

JOB = """
import hpcoll.comm.team.team as team
os.environ.update(HPCOLL_TIMEOUT="3s", HPCOLL_WARN="500ms")
other, absent = MPI.COMM_WORLD.Dup(), 1
other.Set_name("other")
def breaks_off(*arguments):
    raise KeyboardInterrupt
if comm.rank == absent:
    END
try:
    hpcoll.Communicator(other)
    say("made")
except BaseException as error:
    say(type(error).__name__, error)
try:
    hpcoll.Communicator(other)
    say("made")
except hpcoll.ArgumentError as error:
    say("again", error)
MPI.COMM_WORLD.Barrier()
os._exit(0)
"""
ENDS = {"never comes": "MPI.COMM_WORLD.Barrier(); os._exit(0)", "breaks off": "team.agree = breaks_off"}


@pytest.mark.parametrize("end", ENDS)
def test_who_has_not_come_is_named(end: str) -> None:
    done = finished(command(3, JOB.replace("END", ENDS[end])), {})
    said, what = spoken(3, done.stdout), "the first collective of hpcoll's"
    for rank in (0, 2):
        assert said[rank][0].startswith(
            f"CollectiveTimeout rank {rank}: not all of 3 ranks came to {what}, on other at "
        ), said
        assert "in 3 s: ranks 0, 2 came; rank 1 did not" in said[rank][0]
        assert (
            said[rank][1]
            == f"again rank {rank}: this communicator cannot be used: not all ranks came to {what}"
        )
    assert said[1][:1] == (["KeyboardInterrupt "] if end == "breaks off" else [])
    assert "rank 0 waits for 1 s: not all of 3 ranks have come to" in done.stderr
    assert "ranks 0, 2 came; rank 1 did not" in done.stderr
