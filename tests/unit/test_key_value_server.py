"""The server of the key-value store among other users of its machine: who gets in, what others cost, and that it goes."""

import gc
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from slowness import slowed

from hpcoll.base import authenticated
from hpcoll.base.authenticated import LOOPBACK
from hpcoll.base.key_value_server import Server, connect

ROOT = Path(__file__).resolve().parents[2]
SOON_S = slowed(10)
MOST = authenticated._MOST_PENDING
QUIET = ("-W", "ignore::DeprecationWarning")  # of a fork, in Python 3.12 and later
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
# Bash, since another user may not be able to read this Python. Every third connection says something.
FLOOD = """
ulimit -Sn "$(ulimit -Hn)"
for i in $(seq 1300); do
    exec {fd}<>/dev/tcp/127.0.0.1/"$1" || exit
    ((i % 3)) || printf '\\0\\0\\0\\5garbage %099d' "$i" >&$fd
done 2>/dev/null
echo "$i as $UID"
read
"""


@pytest.fixture
def server() -> Server:
    return Server()


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "hpcoll-store"]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def ask(connection: Connection, *words: object) -> object:
    connection.send(words)
    return connection.recv()


def closed(stranger: socket.socket) -> bool:
    """Read what there is; true at the end of it."""
    try:
        while stranger.recv(1000, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def run(program: str) -> str:
    """Return what a Python program of its own says."""
    done = subprocess.run(
        [sys.executable, *QUIET, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=slowed(60)
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_one_address_is_listened_at(server: Server) -> None:
    """Loopback, unless another is said; no other of this host's."""
    for one in (server, Server("127.0.0.2")):
        host, port = one.address
        rows = [
            line.split()
            for name in ("tcp", "tcp6")
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        ]
        listening = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]
        assert listening == [f"{socket.inet_aton(host)[::-1].hex().upper()}:{port:04X}"]
    assert server.address[0] == LOOPBACK


def test_another_key_is_refused(server: Server) -> None:
    """At once, and said; nobody waits for the end of a limit."""
    with socket.create_connection(server.address, SOON_S / 2) as stranger:
        stranger.recv(32, socket.MSG_WAITALL)
        stranger.sendall(secrets.token_bytes(64))
        assert stranger.recv(100, socket.MSG_WAITALL) == bytes(32)  # and the end
    with pytest.raises(AuthenticationError):
        connect(server.address, secrets.token_bytes(32))
    assert ask(connect(server.address, server.key), "size") == 0


def test_client_refuses_a_server_without_the_key() -> None:
    """Such as one that sends back what it was sent; after one that has no room, which is asked again."""

    def pretend() -> None:
        listener.accept()[0].close()
        sock, _ = listener.accept()
        with sock:
            sock.sendall(bytes(32))
            sock.sendall(sock.recv(64, socket.MSG_WAITALL)[32:])

    with socket.create_server((LOOPBACK, 0)) as listener:
        pretending = threading.Thread(target=pretend)
        pretending.start()
        with pytest.raises(AuthenticationError):
            connect(listener.getsockname(), secrets.token_bytes(32))
        pretending.join()


class Touch:
    """A file appears where this is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.path,)


def test_nothing_is_unpickled_before_the_key(server: Server, tmp_path: Path) -> None:
    """A request is taken from whoever has shown the key, and from nobody else."""
    touched = tmp_path / "touched"
    with (
        socket.create_connection(server.address) as stranger,
        Connection(os.dup(stranger.fileno())) as connection,
    ):
        connection.send(("set", "a", Touch(touched)))
        until(lambda: closed(stranger))
    assert not touched.exists()
    ask(connect(server.address, server.key), "set", "a", Touch(touched))
    assert touched.exists()


@pytest.mark.parametrize("said", ["nothing", "a byte at a time", "all but a byte"])
def test_handshake_has_a_deadline(said: str) -> None:
    server = Server(handshake_s=0.3)
    with socket.create_connection(server.address) as stranger:
        begun, nbytes = time.monotonic(), 63 if said == "all but a byte" else 0
        stranger.sendall(bytes(nbytes))
        while not closed(stranger):
            assert time.monotonic() - begun < SOON_S
            time.sleep(0.05)
            nbytes += stranger.send(b"a" * (said == "a byte at a time"))
        assert time.monotonic() - begun > 0.25
        assert nbytes < 64  # after which it would be refused


def test_client_does_not_wait_for_ever() -> None:
    with socket.create_server((LOOPBACK, 0)) as silent, pytest.raises(TimeoutError):
        connect(silent.getsockname(), b"", 0.2)


def test_oldest_connection_makes_room(server: Server) -> None:
    """Of those that have not shown the key; the others stay."""
    connection = connect(server.address, server.key)
    silent = [socket.create_connection(server.address) for _ in range(MOST)]
    for one in silent:
        one.recv(32, socket.MSG_WAITALL)
    assert not any(map(closed, silent))
    newest = socket.create_connection(server.address)
    newest.recv(32, socket.MSG_WAITALL)
    assert [closed(one) for one in (*silent, newest)] == [True] + MOST * [False]
    assert ask(connection, "add", "n", 1) == 1


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv, to be another user"
)
def test_another_user_stops_nobody(server: Server) -> None:
    """1,300 connections that are silent or say garbage cost no thread and few descriptors; clients come in meanwhile, and are answered."""
    connection = connect(server.address, server.key)
    until(lambda: len(threads()) == 2)  # those of servers that went before have ended
    known = descriptors()
    flood = subprocess.Popen(
        [*NOBODY, "bash", "-c", FLOOD, "bash", str(server.address[1])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with flood:
        late = [connect(server.address, server.key) for _ in range(20)]
        assert flood.stdout is not None
        assert flood.stdout.readline() == "1300 as 65534\n"
        late.append(connect(server.address, server.key))
        assert [ask(one, "add", "n", 1) for one in (connection, *late)] == list(range(1, 23))
        # two are pipes of this test
        until(lambda: MOST // 2 < descriptors() - known - 2 * len(late) <= MOST + 2)
        assert len(threads()) == 2 + len(late)
        flood.communicate()
    until(lambda: descriptors() == known + 2 * len(late))


OUT_OF_DESCRIPTORS = """
import os, resource, socket, time
from hpcoll.base.key_value_server import Server, connect

server, late = Server(), socket.socket()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
late.connect(server.address)
begun = time.process_time()
time.sleep(1)
print(time.process_time() - begun)
for one in taken:
    os.close(one)
late.settimeout(10)
print(len(late.recv(32, socket.MSG_WAITALL)))
connect(server.address, server.key)
"""


def test_pause_where_there_is_no_descriptor() -> None:
    """A connection that cannot be taken yet costs no core, and is taken once there is a descriptor."""
    cpu_s, nbytes = run(OUT_OF_DESCRIPTORS).split()
    assert (float(cpu_s) < 0.3, nbytes) == (True, "32")


def test_nothing_is_left() -> None:
    """The server goes with strangers, clients and waits; all of them are told."""
    gc.collect()
    until(lambda: not threads())
    known, server = descriptors(), Server()
    stranger, connections = (
        socket.create_connection(server.address),
        [connect(server.address, server.key) for _ in range(2)],
    )
    connections[0].send(("get", ["never"], 1000.0))
    address, key = server.address, server.key
    del server
    until(lambda: not threads())
    for connection in connections:
        with pytest.raises((EOFError, ConnectionError)), connection:
            ask(connection, "size")
    with stranger:
        until(lambda: closed(stranger))
    with pytest.raises(ConnectionRefusedError):
        connect(address, key)
    assert descriptors() == known


FORKED = """
import os, socket, time
from hpcoll.base.key_value_server import Server, connect

server = Server()
address, key = server.address, server.key
connection = connect(address, key)
if not (child := os.fork()):
    del server
    os._exit(0)
os.waitpid(child, 0)
connection.send(("add", "n", 1))
print(connection.recv())
stranger = socket.create_connection(address, 10)
stranger.recv(32, socket.MSG_WAITALL)
reader, writer = os.pipe()
if not os.fork():
    os.close(writer)
    os.read(reader, 1)  # until the parent has ended
    os._exit(0)
del server
print(stranger.recv(1))
end = time.monotonic() + 10
while time.monotonic() < end:
    try:
        connect(address, key).close()
    except ConnectionRefusedError:
        print("refused")
        break
"""


def test_fork_has_no_say_and_keeps_nothing() -> None:
    """A child's copy ends nothing when it goes; that of a child that lives on keeps nobody waiting."""
    assert run(FORKED).split() == ["1", "b''", "refused"]


ENDS = """
import socket
from hpcoll.base.key_value_server import Server, connect

server = Server()
stranger, connection = socket.create_connection(server.address), connect(server.address, server.key)
connection.send(("get", ["never"], 1000.0))
print("end")
"""


def test_exit_does_not_wait() -> None:
    """A program ends that has a server, a stranger and a wait."""
    assert run(ENDS) == "end"
