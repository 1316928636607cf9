"""Under ULFM ranks that are killed are named by all others, who go on without them.

Each test starts a job of its own, so they run once: where this one has a single rank.
"""

import re
from pathlib import Path

import pytest
from launching import MESSAGES, STARTS_JOBS, finished, launch
from mpi4py import MPI
from reference import SOON_S
from test_peer_failures import job

pytestmark = STARTS_JOBS
ULFM = pytest.mark.skipif(
    MPI.ERR_PROC_FAILED == MPI.ERR_REVOKED, reason="the MPI library knows no failures of ranks"
)


@ULFM
def test_survivors_go_on() -> None:
    """Under ULFM the others of a rank that is killed raise soon, and shrink: new shared memory, topology, plans."""
    after = f"""
    begun = time.monotonic()
    rest = comm.shrink()
    for count in (8, 40_000):
        x, y = np.ones(count), np.zeros(count)
        for _ in range(20):
            rest.Allreduce(x, y)
            assert (y == rest.size).all()
            rest.Iallreduce(x, y).Wait()
            rest.Bcast(y, root=rest.size - 1)
    say("shrunk to", rest.size, rest.rank, rest._context.resources.shares_memory, time.monotonic() - begun < {SOON_S})
    """
    said, errors, _ = job(
        "blocking", "os.kill(os.getpid(), signal.SIGKILL)", after, options=("--with-ft", "ulfm")
    )
    for rank, place in ((0, 0), (2, 1)):
        assert len(said[rank]) == 2, (said, errors[-2000:])
        found = re.match(
            r"(\d+\.\d\d) PeerFailed .*rank 1 \(process \d+ on .*\) has (ended: it was killed|failed)",
            said[rank][0],
        )
        assert found, said
        assert float(found[1]) < SOON_S
        assert said[rank][1] == f"shrunk to 2 {place} True True"


@ULFM
@pytest.mark.parametrize("way", [{}, MESSAGES])
def test_survivors_of_a_first_use(way: dict[str, str]) -> None:
    """A rank that is killed never comes to it: the others raise as elsewhere, and say which rank of the new communicator that is."""
    before = "others = [world.Split(0, (world.rank + 1) % world.size) for _ in range(4)]"
    after = "say('shrunk to', comm.shrink().size)"
    said, errors, _ = job(
        "first use",
        "os.kill(os.getpid(), signal.SIGKILL)",
        after,
        before=before,
        options=("--with-ft", "ulfm"),
        **way,
    )
    for rank in (0, 2):
        assert len(said[rank]) == 2, (said, errors[-2000:])
        who = "rank 2 has failed" if way else r"rank 2 \(process \d+ on \S+\) has ended: it was killed"
        found = re.match(
            rf"(\d+\.\d\d) PeerFailed .*not all ranks come to the first collective of hpcoll's, .*: {who}",
            said[rank][0],
        )
        assert found, said
        assert float(found[1]) < SOON_S
        assert said[rank][1] == "shrunk to 2"


@ULFM
@pytest.mark.ci
def test_a_training_goes_on() -> None:
    """The example, of which rank 0 is killed: the result is that of an undisturbed run."""
    program = [str(Path(__file__).parents[2] / "examples" / "survivors.py"), "--kill", "0", "--steps", "40"]
    done = finished(launch(4, program, ("--with-ft", "ulfm")), {})
    assert re.search(r"rank 0 \(process \d+ on .*\) has ended: it was killed", done.stdout), (
        done.stdout + done.stderr[-2000:]
    )
    assert re.search(
        r"3 ranks: accuracy (0\.9\d+), alone \1, parameters differ by \d\.\de-1\d", done.stdout
    ), done.stdout


def test_nobody_shrinks_without_ulfm() -> None:
    said, errors, _ = job(
        "blocking",
        "pass",
        before="try:\n    comm.shrink()\nexcept hpcoll.ArgumentError as error:\n    say(error)",
    )
    assert all("shrink needs Open MPI 5 and mpirun --with-ft ulfm" in texts[0] for texts in said.values()), (
        said,
        errors,
    )
