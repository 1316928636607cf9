"""``hpcoll inspect --live`` on a job that runs: from a process beside it, which the ranks know nothing of.

Each test starts a job of its own, so they run once: where this one has a single rank.
"""

import re
from pathlib import Path

from launching import STARTS_JOBS, job

pytestmark = STARTS_JOBS

LOOK_S = 30  # most seconds until something is shown

# Looks until what is shown of the processes with some numbers is what a text should be, and then lets rank 1 go on.
LOOK = f"""
import pathlib, re, subprocess, sys, time
done, wanted, *pids = sys.argv[1:]
own, end = "", time.monotonic() + {LOOK_S}
while not re.search(wanted, own) and time.monotonic() < end:
    shown = subprocess.run([sys.executable, "-m", "hpcoll", "inspect", "--live", "--once"], stdout=subprocess.PIPE, text=True).stdout
    jobs = [job for job in shown.split("\\n\\n") if all(re.search(rf"^ +\\d+ +{{pid}} ", job, re.MULTILINE) for pid in pids)]
    own = " ".join(" ".join(jobs).split())
pathlib.Path(done).touch()
print(own or shown)
"""

# Rank 1 does not come until it was seen; a child of rank 0 looks meanwhile, while its parent waits. Nothing is set up for it.
LOOKED_AT = f"""
import signal, subprocess
pids = world.allgather(os.getpid())
x, y = np.ones(8), np.zeros(8)
for _ in range(3):
    comm.Allreduce(x, y)
child = None
if comm.rank == 0:
    clean = {{name: text for name, text in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PMI_"))}}
    command = [sys.executable, "-c", {LOOK!r}, DONE, WANTED, *map(str, pids)]
    child = subprocess.Popen(command, env=clean, stdout=subprocess.PIPE, text=True)
if comm.rank == 1:
    VICTIM
comm.Allreduce(x, y)
assert (y == comm.size).all()
if child:
    say("pids", *pids)
    say("shown", " ".join(child.communicate()[0].split()))
"""
UNTIL_SEEN = f"for i in $(seq {20 * LOOK_S}); do test -e {{DONE}} && break; sleep 0.05; done"
SLEEPS = f'os.system(f"{UNTIL_SEEN}")'
STOPS = f'os.system(f"({UNTIL_SEEN}; kill -CONT {{os.getpid()}}) &"); os.kill(os.getpid(), signal.SIGSTOP)'


def shows(folder: Path, victim: str, row: str, ends: str) -> None:
    """Return what is shown of a job, which then ends well, while its rank 1 does something else: its row, and the end of the sentence."""
    waits = r"running \d+ % Allreduce\(float64\[8\], op=SUM\) <string>:\d+ \d\S* m?s rank"
    sentence = r"\) at <string>:\d+ on MPI_COMM_WORLD waits for \d\S* m?s: rank 0 waits for rank"
    wanted = rf": 3 ranks on .* 0 \d+ {waits} .* 1 \d+ {row} .*2 \d+ {waits} .*{sentence} .*rank 1 {ends}$"
    said, _ = job(
        3, f"DONE, WANTED = {str(folder / 'done')!r}, {wanted!r}\n" + LOOKED_AT.replace("VICTIM", victim)
    )
    pids, text = re.fullmatch(r"pids (.*)\nshown (.*)\n", said[0]).groups()  # type: ignore[union-attr]
    assert re.search(wanted, text), text
    assert all(f" {rank} {pid} " in text for rank, pid in enumerate(pids.split())), (pids, text)


def test_a_rank_that_computes(tmp_path: Path) -> None:
    """Since when, and after which call."""
    doing = r"in no collective since \d\d:\d\d:\d\d, after blocking call 3 on MPI_COMM_WORLD"
    shows(tmp_path, SLEEPS, rf"running \d+ % {doing}", f"is {doing}")


def test_a_rank_that_is_stopped(tmp_path: Path) -> None:
    """It writes nothing any more, and is shown."""
    shows(tmp_path, STOPS, "stopped", "is stopped")


def test_one_descriptor() -> None:
    """However many communicators there are; and those that a process starts do not get it."""
    script = """
import subprocess
comm.Dup().Barrier()
links = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")]
listed = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, close_fds=False).stdout
say(sum("hpcoll-live" in link for link in links), "hpcoll-live" in listed)
"""
    said, _ = job(2, script)
    assert said == dict.fromkeys(range(2), "1 False\n")
