"""Connections between processes that know one key: who accepts them, and who connects; both sides prove that they know it.

Other users of the machine can connect too. A connection without the key costs one descriptor for at most ten seconds. Up to 64 bytes are
read from it, and none is unpickled. Imports nothing but Python's own modules.

Handshake: the server sends a nonce of 32 bytes; the client sends a nonce of its own and a proof; the server sends a proof. A proof is an
HMAC-SHA256 of the prover's name and both nonces, so that neither side can return the other's.
"""

import hmac
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError
from typing import NamedTuple

Address = (
    tuple[str, int] | str
)  # host and port, or the name of a socket of this host that begins with a zero byte

LOOPBACK = "127.0.0.1"
HANDSHAKE_S = 10.0
_CONNECT_S = 3.0
_MOST_PENDING = 64
_PAUSE_S = 0.1  # while the process has no descriptor or memory for another connection
_AGAIN_S = 0.01
_NBYTES = 32  # of a nonce and of a proof
_SERVER, _CLIENT = b"server", b"client"
_REFUSED = bytes(_NBYTES)


def listen(address: Address) -> socket.socket:
    """Return a socket that listens at an address; port 0 is any free one. OSError: the address is taken, or not this host's."""
    if isinstance(address, tuple):
        return socket.create_server(address, backlog=1024)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(address)
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


class _Pending(NamedTuple):
    """A connection in its handshake."""

    nonce: bytes
    said: bytearray
    end: float  # of the handshake's time


class Acceptor:
    """Accepts connections until woken by a byte; each that has shown the key is served in a thread of its own.

    ``serve`` gets the socket, which is closed when it returns, and this acceptor.
    """

    def __init__(
        self,
        listener: socket.socket,
        woken: socket.socket,
        key: bytes,
        serve: Callable[[socket.socket, "Acceptor"], None],
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        self._listener, self._woken, self._key, self._serve = listener, woken, key, serve
        self._handshake_s = handshake_s
        self._pending: dict[socket.socket, _Pending] = {}  # oldest first
        self._clients: set[socket.socket] = set()
        self._leaving = threading.Lock()
        self._selector = selectors.DefaultSelector()
        for sock in (listener, woken):
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ)

    def accept(self) -> None:
        """Accept connections until woken; then nobody listens any more, and whoever is in a handshake is told."""
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
            _shut(self._listener)

    def shut_clients(self) -> None:
        """Shut down all connections, also those that a fork's children have copies of."""
        with self._leaving:
            for sock in self._clients:
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
            threading.Thread(
                target=self._answer, args=(sock, proof), name="hpcoll-store", daemon=True
            ).start()
        except RuntimeError:  # no more threads: a client that gets no proof tries again
            self._clients.remove(sock)
            sock.close()

    def _answer(self, sock: socket.socket, proof: bytes) -> None:
        """Show a client that this side knows the key, too, and serve it."""
        sock.setblocking(True)
        try:
            with suppress(OSError):
                sock.sendall(proof)
                self._serve(sock, self)
        finally:
            with self.leaving(sock):
                sock.close()

    @contextmanager
    def leaving(self, sock: socket.socket) -> Iterator[None]:
        """Give a client's socket up, which is closed in the body, while nobody shuts it down."""
        with self._leaving:
            self._clients.discard(sock)
            yield


def connect(address: Address, key: bytes, handshake_s: float = HANDSHAKE_S) -> socket.socket:
    """Connect to an acceptor and authenticate both sides.

    Raises:
        OSError: nobody listens there, or the handshake takes too long.
        EOFError: the other side has no room.
        AuthenticationError: one side does not know the other's key.
    """
    end = time.monotonic() + handshake_s
    while True:
        sock = _connected(address)
        try:
            _authenticate(sock, key, end)
            sock.settimeout(None)
            return sock
        except (EOFError, ConnectionError):  # the server dropped the connection in favour of others
            sock.close()
            if time.monotonic() > end:
                raise
        except BaseException:
            sock.close()
            raise
        time.sleep(_AGAIN_S)


def _connected(address: Address) -> socket.socket:
    """Return a socket that is connected to an address."""
    if isinstance(address, tuple):
        return socket.create_connection(address, _CONNECT_S)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(_CONNECT_S)
        sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock


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
