"""Another user may, where both can write, take names first, plant links, hold locks. Needs root, to act as a second user."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from slowness import slowed

from hpcoll.base.files import OwnedFolder, write_file

SECOND = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="needs root and setpriv, to act as a second user",
)
KEPT = "from hpcoll.base.disk_cache import kept; print(kept('one', lambda: b'made').decode())"


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder to which everybody may write, as /tmp is."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


def as_second(command: str, **variables: Path | str) -> None:
    subprocess.run(
        [*SECOND, "sh", "-ec", command],
        env={**os.environ, **{k: str(v) for k, v in variables.items()}},
        check=True,
    )


def kept(**variables: Path) -> tuple[str, str]:
    """Return what a process of this user gets from its cache, and what it says."""
    # the first process of its node
    environment = {name: value for name, value in os.environ.items() if "LOCAL" not in name}
    done = subprocess.run(
        [sys.executable, "-c", KEPT],
        env={**environment, **{k: str(v) for k, v in variables.items()}},
        capture_output=True,
        text=True,
        check=True,
        timeout=slowed(60),
    )
    return done.stdout.strip(), done.stderr


def planted(shared: Path, folder: Path) -> Path:
    """A file in the cache's own format, for all to read."""
    with closing(OwnedFolder(folder, 0o755)) as made:
        made.write("one", b"planted")
    return folder / "one"


def test_code_of_another_user_is_not_loaded(shared: Path) -> None:
    """The folder of the cache is taken before the first process of this user makes it."""
    file = planted(shared, shared / "made")
    as_second("mkdir -m 755 $F && cp $P $F/one && chmod 644 $F/one", F=shared / "hpcoll", P=file)
    said, warning = kept(NUMBA_CACHE_DIR=shared, TMPDIR=shared)
    assert said == "made"
    assert "hpcoll belongs to user 65534, and this is user 0; it is not used" in warning


def test_files_of_another_user_are_replaced(shared: Path) -> None:
    """They are in a folder that was once open to all."""
    file = planted(shared, shared / "made")
    (shared / "hpcoll").mkdir()
    (shared / "hpcoll").chmod(0o777)
    as_second("cp $P $F/one && chmod 644 $F/one", F=shared / "hpcoll", P=file)
    (shared / "hpcoll").chmod(0o700)
    said, warning = kept(NUMBA_CACHE_DIR=shared, TMPDIR=shared)
    assert said == "made"
    assert "hpcoll/one belongs to user 65534, and this is user 0; it is not used" in warning
    assert kept(NUMBA_CACHE_DIR=shared, TMPDIR=shared) == ("made", "")


@pytest.mark.parametrize(
    "taken", ["mkdir -m 777 $F", "mkfifo -m 666 $F", "ln -s $P $F"], ids=["folder", "pipe", "link"]
)
def test_the_folder_of_locks_is_taken(shared: Path, taken: str) -> None:
    private = shared / "private"
    private.mkdir(0o700)
    as_second(taken, F=shared / "hpcoll-0", P=private)
    said, warning = kept(NUMBA_CACHE_DIR=private, TMPDIR=shared)
    assert said == "made"
    assert "do not share the work of compiling" in warning
    assert [path.name for path in private.iterdir()] == ["hpcoll"]


def test_a_lock_that_another_user_holds_is_not_waited_for(shared: Path) -> None:
    (shared / "hpcoll-0").mkdir()
    (shared / "hpcoll-0").chmod(0o777)
    holder = subprocess.Popen([*SECOND, "flock", str(shared / "hpcoll-0" / "one"), "sleep", "60"])
    try:
        while not (shared / "hpcoll-0" / "one").exists():
            time.sleep(0.01)
        assert kept(NUMBA_CACHE_DIR=shared, TMPDIR=shared)[0] == "made"
        (shared / "hpcoll-0").chmod(0o700)
        (shared / "hpcoll" / "one").unlink()
        assert kept(NUMBA_CACHE_DIR=shared, TMPDIR=shared)[0] == "made"
    finally:
        holder.kill()
        holder.wait()


def test_planted_links_lead_nowhere(shared: Path) -> None:
    """As names of results, of records, of tuning tables."""
    private = shared / "private"
    private.mkdir(0o700)
    (private / "key").write_text("private")
    as_second("ln -s $P/key $S/rank0.json", P=private, S=shared)
    write_file(shared / "rank0.json", "record")
    assert (private / "key").read_text() == "private"
    assert ((shared / "rank0.json").read_text(), (shared / "rank0.json").is_symlink()) == ("record", False)


PAGE = """
import json, os, sys, time
from hpcoll.runtime.telemetry.status_page import Identity, StatusPage
os.setuid(int(sys.argv[1]))
page = StatusPage()
page.introduce(Identity(os.getpid(), 0, 1, "job", os.uname().nodename, 1.0, {}, []))
page.write({"left": "has ended\\x1b[2J\\n" + sys.argv[1]})
print("ready", flush=True)
time.sleep(60)
"""
ENDS = """
import os
from mpi4py import MPI
from hpcoll.comm.status import early_exit
os.environ["PMIX_NAMESPACE"] = "job"
print([how for _, how in early_exit.ends()])
"""


def test_a_rank_that_another_user_says_has_ended_is_not_believed() -> None:
    """Ranks of root can read the status pages of all users. What this user's pages say is printable."""
    planted = [
        subprocess.Popen([sys.executable, "-c", PAGE, user], stdout=subprocess.PIPE)
        for user in ("0", "65534")
    ]
    try:
        for one in planted:
            assert one.stdout is not None
            assert one.stdout.readline() == b"ready\n"
        done = subprocess.run(
            [sys.executable, "-c", ENDS], capture_output=True, text=True, check=True, timeout=slowed(60)
        )
    finally:
        for one in planted:
            one.kill()
            one.communicate()
    assert done.stdout == "['has ended?[2J 0']\n", done.stderr
