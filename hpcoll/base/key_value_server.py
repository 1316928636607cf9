"""A key-value store in one process, and authenticated connections to it for clients that know its key.

Other users of the machine can connect too. A connection without the key costs the server one descriptor for at most ten seconds. The
server reads up to 64 bytes from it and unpickles none.

Handshake: the server sends a nonce of 32 bytes; the client sends a nonce of its own and a proof; the server sends a proof. A proof is an
HMAC-SHA256 of the prover's name and both nonces, so that neither side can return the other's.
"""

import hmac
import os
import secrets
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from typing import NamedTuple

Address = tuple[str, int]

LOOPBACK = "127.0.0.1"
HANDSHAKE_S = 10.0
_CONNECT_S = 3.0
_MOST_PENDING = 64
_PAUSE_S = 0.1  # while the process has no descriptor or memory for another connection
_AGAIN_S = 0.01
_NBYTES = 32  # of a nonce and of a proof
_SERVER, _CLIENT = b"server", b"client"
_REFUSED = bytes(_NBYTES)


class Table:
    """The keys and values, for many threads at once."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._ended = False

    def set(self, key: str, value: bytes) -> None:
        """Set a value and wake the threads that wait for it."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, keys: Sequence[str], limit_s: float) -> list[bytes] | None:
        """Return the values of keys once all exist; None when that takes longer than ``limit_s``. EOFError: the table has ended."""
        with self._changed:
            found = self._changed.wait_for(lambda: self._ended or self._values.keys() >= set(keys), limit_s)
            if self._ended:
                raise EOFError
            return [self._values[key] for key in keys] if found else None

    def has(self, keys: Sequence[str]) -> bool:
        """Say whether all keys exist."""
        return self.get(keys, 0) is not None

    def add(self, key: str, amount: int) -> int:
        """Add to a decimal number, which begins at 0, and return the sum."""
        with self._changed:
            total = int(self._values.get(key, b"0")) + amount
            self.set(key, str(total).encode())
            return total

    def append(self, key: str, value: bytes) -> None:
        """Append to a value, which begins empty."""
        with self._changed:
            self.set(key, self._values.get(key, b"") + value)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Set a key that has the expected value, or a new key of which b"" is expected; return its value afterwards."""
        with self._changed:
            found = self._values.get(key)
            if found == expected or (found is None and not expected):
                self.set(key, desired)
            return self._values.get(key, expected)

    def delete(self, key: str) -> bool:
        """Delete a key and say whether it existed."""
        with self._changed:
            return self._values.pop(key, None) is not None

    def size(self) -> int:
        """Return the number of keys."""
        return len(self._values)

    def end(self) -> None:
        """Wake all waiting threads for good."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class Server:
    """The server of a key-value store, which listens at one IPv4 address of this host, and ends when it is dropped.

    Attributes:
        address: Host and port.
        key: 32 bytes that clients must know.
    """

    def __init__(self, host: str = LOOPBACK, handshake_s: float = HANDSHAKE_S) -> None:
        listener = socket.create_server((host, 0), backlog=1024)
        self.address: Address = listener.getsockname()
        self.key = secrets.token_bytes(32)
        ours, its = socket.socketpair()
        threading.Thread(
            target=_Acceptor(listener, its, self.key, handshake_s).run, name="hpcoll-store", daemon=True
        ).start()
        weakref.finalize(self, _stop, ours, os.getpid()).atexit = False


def _stop(waking: socket.socket, pid: int) -> None:
    """End the server's thread, unless this process is a fork's child, which has but a copy of the server."""
    with waking, suppress(OSError):
        if os.getpid() == pid:
            waking.send(b"\0")


class _Pending(NamedTuple):
    """A connection in its handshake."""

    nonce: bytes
    said: bytearray
    end: float  # of the handshake's time


class _Acceptor:
    """The thread that accepts connections; a connection that has shown the key gets a thread of its own."""

    def __init__(self, listener: socket.socket, woken: socket.socket, key: bytes, handshake_s: float) -> None:
        self._listener, self._woken, self._key, self._table = listener, woken, key, Table()
        self._handshake_s = handshake_s
        self._pending: dict[socket.socket, _Pending] = {}  # oldest first
        self._clients: set[socket.socket] = set()
        self._leaving = threading.Lock()
        self._selector = selectors.DefaultSelector()
        for one in (listener, woken):
            one.setblocking(False)
            self._selector.register(one, selectors.EVENT_READ)

    def run(self) -> None:
        """Accept connections until woken, then shut down all, also those that a fork's children have copies of."""
        with self._selector, self._woken, self._listener:
            while self._woken not in (ready := self._ready()):
                for sock in ready - {self._listener}:  # before accepting another: ranks answer quickly
                    self._read(sock)
                while self._pending and self._oldest_end() <= time.monotonic():
                    self._drop_oldest()
                if self._listener in ready:
                    self._accept()
            while self._pending:
                self._drop_oldest()
            self._table.end()
            with self._leaving:
                for sock in (self._listener, *self._clients):
                    _shut(sock)

    def _ready(self) -> set[socket.socket]:
        left_s = max(0.0, self._oldest_end() - time.monotonic()) if self._pending else None
        return {
            key.fileobj for key, _ in self._selector.select(left_s) if isinstance(key.fileobj, socket.socket)
        }

    def _oldest_end(self) -> float:
        return next(iter(self._pending.values())).end

    def _drop_oldest(self) -> None:
        with self._released(next(iter(self._pending))) as sock:
            _shut(sock)

    def _released(self, sock: socket.socket) -> socket.socket:
        del self._pending[sock]
        self._selector.unregister(sock)
        return sock

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
            self._selector.register(sock, selectors.EVENT_READ)
        except OSError:  # no descriptor or memory: take a pending connection's, or wait for some
            if self._pending:
                self._drop_oldest()
            else:
                time.sleep(_PAUSE_S)
            return
        if len(self._pending) == _MOST_PENDING:
            self._drop_oldest()
        sock.setblocking(False)
        self._pending[sock] = _Pending(
            nonce := secrets.token_bytes(_NBYTES), bytearray(), time.monotonic() + self._handshake_s
        )
        with suppress(OSError):  # the client is gone, as reading will show
            sock.send(nonce)

    def _read(self, sock: socket.socket) -> None:
        """Read more of a client's nonce and proof, and serve it where the proof is right."""
        pending, heard = self._pending[sock], b""
        with suppress(OSError):
            heard = sock.recv(2 * _NBYTES - len(pending.said))
        pending.said.extend(heard)
        if not heard:
            self._released(sock).close()
        elif len(pending.said) == 2 * _NBYTES:
            self._released(sock)
            nonces, proof = pending.nonce + pending.said[:_NBYTES], pending.said[_NBYTES:]
            if hmac.compare_digest(proof, _proof(self._key, _CLIENT, nonces)):
                self._start(sock, _proof(self._key, _SERVER, nonces))
            else:
                with sock, suppress(OSError):
                    sock.send(_REFUSED)

    def _start(self, sock: socket.socket, proof: bytes) -> None:
        self._clients.add(sock)
        try:
            threading.Thread(target=self._serve, args=(sock, proof), name="hpcoll-store", daemon=True).start()
        except RuntimeError:  # no more threads: a client that gets no proof tries again
            self._clients.remove(sock)
            sock.close()

    def _serve(self, sock: socket.socket, proof: bytes) -> None:
        """Answer one client until it disconnects."""
        sock.setblocking(True)
        connection = Connection(sock.fileno())
        try:
            with suppress(EOFError, OSError):
                sock.sendall(proof)
                while True:
                    name, *arguments = connection.recv()
                    connection.send(getattr(self._table, name)(*arguments))
        finally:
            with self._leaving:
                self._clients.remove(sock)
                sock.detach()
                connection.close()


def connect(address: Address, key: bytes, handshake_s: float = HANDSHAKE_S) -> Connection:
    """Connect to a server and authenticate both sides.

    A client sends the name of a method of `Table` with its arguments, and receives the result.

    Raises:
        OSError: nobody listens there, or the handshake takes too long.
        EOFError: the server has no room.
        AuthenticationError: one side does not know the other's key.
    """
    end = time.monotonic() + handshake_s
    while True:
        with socket.create_connection(address, _CONNECT_S) as sock:
            try:
                _authenticate(sock, key, end)
                sock.settimeout(None)
                return Connection(sock.detach())
            except (EOFError, ConnectionError):  # the server dropped the connection in favour of others
                if time.monotonic() > end:
                    raise
        time.sleep(_AGAIN_S)


def _authenticate(sock: socket.socket, key: bytes, end: float) -> None:
    """Run the client's side of the handshake."""
    nonces = _received(sock, _NBYTES, end) + secrets.token_bytes(_NBYTES)
    sock.sendall(nonces[_NBYTES:] + _proof(key, _CLIENT, nonces))
    if not hmac.compare_digest(_received(sock, _NBYTES, end), _proof(key, _SERVER, nonces)):
        raise AuthenticationError("it has another key")


def _received(sock: socket.socket, nbytes: int, end: float) -> bytes:
    """Receive exactly ``nbytes`` bytes."""
    found = b""
    while len(found) < nbytes:
        sock.settimeout(max(_AGAIN_S, end - time.monotonic()))
        found += (more := sock.recv(nbytes - len(found)))
        if not more:
            raise EOFError
    return found


def _proof(key: bytes, side: bytes, nonces: bytes) -> bytes:
    """Return the proof that a side, the server or the client, knows the key."""
    return hmac.digest(key, side + nonces, "sha256")


def _shut(sock: socket.socket) -> None:
    """Shut a connection down in all processes that have a copy of it."""
    with suppress(OSError):  # it has ended
        sock.shutdown(socket.SHUT_RDWR)
