"""Point-to-point messages of GPU arrays, and mpi4py's other methods that take buffers.

Host buffers go to the MPI library as they are. GPU arrays go there too where it takes them, after the work on their stream; elsewhere
they go through page-locked host memory. A call is one message in any case, so that its peer may have any buffer and need not know hpcoll.
"""

from array import array
from collections.abc import Callable
from functools import cache, partial, wraps
from types import ModuleType
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.arguments.memory import UNREADABLE
from hpcoll.comm.requests.chained import chain
from hpcoll.comm.requests.progress_thread import board
from hpcoll.comm.requests.request import Request
from hpcoll.runtime.gpu.arrays import ON_HOST
from hpcoll.runtime.gpu.cuda import signs

_Array, _Comm, _Message, _SPECS = np.ndarray, MPI.Comm, MPI.Message, (list, tuple)
_HOST_TYPES = frozenset(
    (
        _Array,
        bytes,
        bytearray,
        memoryview,
        array,
        type(None),
        type(MPI.BOTTOM),
        type(MPI.IN_PLACE),
        MPI.buffer,
    )
)
_SEND = """{}

Args:
    buf: NumPy array, buffer spec of mpi4py, or GPU array. A GPU array that is the whole argument may have gaps.
    dest: Rank of the receiver.
    tag: Tag of the message, >= 0.
    stream: CUDA stream that orders the work on a GPU array, or its handle; None: the array's own.

Raises:
    ArgumentError: GPU memory that cannot be used, or not with this spec.
    DeviceError: The CUDA driver failed.
"""


def _named(method: Any, theirs: Any, text: str) -> Any:
    """Return a method under the name and with the signature of mpi4py's."""
    named: Any = wraps(theirs)(method)
    named.__doc__ = text
    return named


def _sending(name: str, text: str) -> Any:
    """Return mpi4py's method that sends one buffer, for GPU arrays too."""
    theirs = getattr(_Comm, name)

    def send(self: MPI.Comm, buf: Any, dest: int, tag: int = 0, *, stream: Any = None) -> MPI.Request | None:
        if not signs or type(buf) is _Array or on_host(buf):
            return theirs(self, buf, dest, tag)
        return theirs(self, _buffers().serve(self, (buf,), None, stream).arguments[0], dest, tag)

    send.__name__, send.__qualname__, send.__doc__ = name, f"Messages.{name}", _SEND.format(text)
    return send


class Receive(Request):
    """A receive into GPU memory by way of the host; the call that finds the message there ends it, by the copy to the GPU.

    Without MPI_THREAD_MULTIPLE it ends in its own `Wait` and `Test` only.
    """

    _what = "a receive into GPU memory"


class Messages(MPI.Intracomm):
    """An intracommunicator whose messages may be GPU arrays.

    Signatures are mpi4py's, with ``stream``: see `hpcoll.runtime.gpu.arrays.stream_of`. Errors are those of `Send`.
    """

    Send = _sending("Send", "Send a message.")
    Ssend = _sending("Ssend", "Send a message, and return when it is being received.")
    Bsend = _sending("Bsend", "Send a message by way of the attached buffer.")
    Rsend = _sending("Rsend", "Send a message for which a receive has begun.")
    Isend = _sending("Isend", "Begin to send a message, and return a request of the MPI library's own.")
    Issend = _sending("Issend", "Begin an `Ssend`, and return a request of the MPI library's own.")
    Ibsend = _sending("Ibsend", "Begin a `Bsend`, and return a request of the MPI library's own.")
    Irsend = _sending("Irsend", "Begin an `Rsend`, and return a request of the MPI library's own.")

    def Recv(
        self,
        buf: Any,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
        *,
        stream: Any = None,
    ) -> None:
        """Receive a message; of a GPU array only the part that a message fills is written.

        Args:
            buf: NumPy array, buffer spec of mpi4py, or contiguous GPU array, with room for the message.
            source: Rank of the sender.
            tag: Tag of the message.
            status: Room for source, tag and size of the message, or None.
            stream: CUDA stream, as in `Send`.
        """
        if not signs or type(buf) is _Array or on_host(buf):
            return _Comm.Recv(self, buf, source, tag, status)
        return _receive(self, partial(_Comm.Recv, self), buf, (source, tag), status, stream)

    def Irecv(
        self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, *, stream: Any = None
    ) -> MPI.Request:
        """Begin to receive a message; arguments as of `Recv`.

        Returns:
            A request of the MPI library's own, for a GPU array also a `Receive`.
        """
        if not signs or type(buf) is _Array or on_host(buf):
            return _Comm.Irecv(self, buf, source, tag)
        return _begin_receive(self, partial(_Comm.Irecv, self), buf, (source, tag), stream)

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
        *,
        stream: Any = None,
    ) -> None:
        """Send a message and receive another; arguments as of `Send` and `Recv`."""
        if not signs or (on_host(sendbuf) and on_host(recvbuf)):
            return _Comm.Sendrecv(self, sendbuf, dest, sendtag, recvbuf, source, recvtag, status)
        (send, recv), store = _buffers().serve(self, (sendbuf, recvbuf), 1, stream)
        call = partial(_Comm.Sendrecv, self, send, dest, sendtag, recv, source, recvtag)
        return _stored(call, status, store)

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
        *,
        stream: Any = None,
    ) -> None:
        """Send a message and receive another into its place; arguments as of `Send` and `Recv`."""
        if not signs or type(buf) is _Array or on_host(buf):
            return _Comm.Sendrecv_replace(self, buf, dest, sendtag, source, recvtag, status)
        (host,), store = _buffers().serve(self, (buf,), 0, stream, replaces=True)
        call = partial(_Comm.Sendrecv_replace, self, host, dest, sendtag, source, recvtag)
        return _stored(call, status, store)

    def Isendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        *,
        stream: Any = None,
    ) -> MPI.Request:
        """Begin a `Sendrecv`; GPU arrays only where the MPI library takes them, after the work on their streams."""
        if signs and not (on_host(sendbuf) and on_host(recvbuf)):
            _settle(self, "Isendrecv", (sendbuf, recvbuf), stream)
        return _Comm.Isendrecv(self, sendbuf, dest, sendtag, recvbuf, source, recvtag)

    def Mprobe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> "Message":
        """Wait for a message, and return an object that receives it; arguments as of `Recv`."""
        message = Message.Probe(self, source, tag, status)
        message._comm = self
        return message

    def Improbe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> "Message | None":
        """Return an object that receives a message that is there, or None; arguments as of `Recv`."""
        message = Message.Iprobe(self, source, tag, status)
        if message is not None:
            message._comm = self
        return message


class Message(MPI.Message):
    """A message that `Messages.Mprobe` has found."""

    __slots__ = ("_comm",)
    _comm: MPI.Comm

    def Recv(self, buf: Any, status: MPI.Status | None = None, *, stream: Any = None) -> None:
        """Receive the message, as `Messages.Recv` does."""
        if not signs or type(buf) is _Array or on_host(buf):
            return _Message.Recv(self, buf, status)
        return _receive(self._comm, partial(_Message.Recv, self), buf, (), status, stream)

    def Irecv(self, buf: Any, *, stream: Any = None) -> MPI.Request:
        """Begin to receive the message, as `Messages.Irecv` does."""
        if not signs or type(buf) is _Array or on_host(buf):
            return _Message.Irecv(self, buf)
        return _begin_receive(self._comm, partial(_Message.Irecv, self), buf, (), stream)


def on_host(spec: Any) -> bool:
    """Say whether a buffer argument is known to lie in host memory, by its type or DLPack's word; a closer look costs as much as a call."""
    buffer = spec[0] if isinstance(spec, _SPECS) and spec else spec
    try:
        return (
            type(buffer) in _HOST_TYPES
            or isinstance(buffer, _Array)
            or buffer.__dlpack_device__()[0] in ON_HOST
        )
    except UNREADABLE:
        return False


@cache
def _buffers() -> ModuleType:
    """Return the module that looks for GPU arrays; it is imported for the first buffer that is no NumPy array."""
    from hpcoll.comm.gpu import messages

    return messages


def _stored(
    call: Callable[[MPI.Status | None], None],
    status: MPI.Status | None,
    store: Callable[[MPI.Status], None] | None,
) -> None:
    """Receive, and copy the received part to the GPU."""
    if store is None:
        return call(status)
    told = MPI.Status() if status is None else status
    call(told)
    return store(told)


def _receive(
    comm: MPI.Comm,
    receive: Callable[..., None],
    buf: Any,
    source_and_tag: tuple[int, ...],
    status: MPI.Status | None,
    stream: Any,
) -> None:
    (host,), store = _buffers().serve(comm, (buf,), 0, stream)
    _stored(partial(receive, host, *source_and_tag), status, store)


def _begin_receive(
    comm: MPI.Comm,
    begin: Callable[..., MPI.Request],
    buf: Any,
    source_and_tag: tuple[int, ...],
    stream: Any,
) -> MPI.Request:
    (host,), store = _buffers().serve(comm, (buf,), 0, stream)
    posted = begin(host, *source_and_tag)
    return posted if store is None else _watched(comm.Get_rank(), posted, store)


def _watched(rank: int, posted: MPI.Request, store: Callable[[MPI.Status], None]) -> MPI.Request:
    """Return a request that is done when another one is and its data are on the GPU."""
    status = MPI.Status()

    def report(theirs: MPI.Status) -> None:
        theirs.Set_source(status.Get_source())
        theirs.Set_tag(status.Get_tag())
        theirs.Set_elements(MPI.BYTE, max(0, status.Get_count(MPI.BYTE)))
        theirs.Set_cancelled(False)

    try:
        return chain(
            rank,
            Receive._what,
            posted,
            Receive.of,
            status=status,
            finish=lambda: store(status),
            report=report,
        )
    except BaseException:  # it must not write to memory that nobody keeps
        with board().held():  # see `hpcoll.comm.requests.operation.abandon`
            posted.Cancel()
            posted.Wait()
        raise


def _passed_on(name: str, theirs: Any) -> Any:
    """Return a method of the MPI library's that cannot wait for copies: it takes GPU arrays only where the library does."""

    def passed(self: MPI.Comm, buf: Any, *others: Any, stream: Any = None, **options: Any) -> Any:
        if signs and not on_host(buf):
            _settle(self, name, (buf,), stream)
        return theirs(self, buf, *others, **options)

    text = f"mpi4py's `{name}`; GPU arrays only where the MPI library takes them, after the work on their streams."
    return _named(
        passed, theirs, f"mpi4py's `{name}`; GPU arrays are refused." if name in _HOST_ONLY else text
    )


def _settle(comm: MPI.Comm, name: str, specs: tuple[Any, ...], stream: Any) -> None:
    """Wait for the work on GPU arrays among the buffers of a method, or refuse them where the MPI library does not take them."""
    buffers, rank = _buffers(), comm.Get_rank()
    arrays = buffers.gpu_arrays(specs, ("a buffer",) * len(specs), rank, None, stream)
    if arrays:
        if name in _HOST_ONLY or not buffers.is_direct(comm, arrays):
            needs = (
                "host memory"
                if name in _HOST_ONLY
                else "host memory, or an MPI library that takes GPU memory and is given it"
            )
            raise ArgumentError(
                f"rank {rank}: {name} needs {needs}, got an array in GPU memory: copy it to the host"
            )
        buffers.settle(arrays, stream, rank)


_HOST_ONLY = ("Attach_buffer",)
_PASSED_ON = (
    "Isendrecv_replace",
    "Send_init",
    "Bsend_init",
    "Ssend_init",
    "Rsend_init",
    "Recv_init",
    "Psend_init",
    "Precv_init",
    *_HOST_ONLY,
)

for _name in _PASSED_ON:
    if hasattr(MPI.Comm, _name):  # older versions of mpi4py lack some
        setattr(Messages, _name, _passed_on(_name, getattr(MPI.Comm, _name)))
