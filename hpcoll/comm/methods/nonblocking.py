"""The non-blocking and the persistent upper-case collectives with mpi4py's signatures.

Their docstrings are those of the blocking methods, with another first sentence and a request that is returned.
"""

from collections.abc import Callable
from inspect import Parameter, cleandoc, signature
from typing import Any

from mpi4py import MPI

from hpcoll.base.keywords import quick_keywords
from hpcoll.comm.arguments.call import Time
from hpcoll.comm.arguments.methods import METHODS
from hpcoll.comm.context.attach import WithContext
from hpcoll.comm.context.start import issue, make_persistent
from hpcoll.comm.methods.blocking import BlockingReductions, Name, Nbytes, Op
from hpcoll.comm.methods.blocking_moves import BlockingMoves


@quick_keywords
class NonBlocking(WithContext):
    """An intracommunicator whose collectives may be in flight while the program goes on.

    All ranks must issue the calls of a communicator in the same order, as MPI demands.
    """

    def Iallreduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Op = MPI.SUM,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
        order: str | None = None,
    ) -> MPI.Request:
        """Begin `Allreduce`."""
        return issue(
            self, "Allreduce", (sendbuf, recvbuf, op), algorithm, segment, stream, timeout, tag, order
        )

    def Ireduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Op = MPI.SUM,
        root: int = 0,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
        order: str | None = None,
    ) -> MPI.Request:
        """Begin `Reduce`."""
        return issue(
            self, "Reduce", (sendbuf, recvbuf, op, root), algorithm, segment, stream, timeout, tag, order
        )

    def Ireduce_scatter_block(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Op = MPI.SUM,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
        order: str | None = None,
    ) -> MPI.Request:
        """Begin `Reduce_scatter_block`."""
        return issue(
            self,
            "Reduce_scatter_block",
            (sendbuf, recvbuf, op),
            algorithm,
            segment,
            stream,
            timeout,
            tag,
            order,
        )

    def Ireduce_scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Any = None,
        op: Op = MPI.SUM,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
        order: str | None = None,
    ) -> MPI.Request:
        """Begin `Reduce_scatter`."""
        return issue(
            self,
            "Reduce_scatter",
            (sendbuf, recvbuf, recvcounts, op),
            algorithm,
            segment,
            stream,
            timeout,
            tag,
            order,
        )

    def Iscan(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Op = MPI.SUM,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
        order: str | None = None,
    ) -> MPI.Request:
        """Begin `Scan`."""
        return issue(self, "Scan", (sendbuf, recvbuf, op), algorithm, segment, stream, timeout, tag, order)

    def Iexscan(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Op = MPI.SUM,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
        order: str | None = None,
    ) -> MPI.Request:
        """Begin `Exscan`."""
        return issue(self, "Exscan", (sendbuf, recvbuf, op), algorithm, segment, stream, timeout, tag, order)

    def Ibarrier(
        self, *, algorithm: Name = None, segment: Nbytes = None, timeout: Time = None, tag: str | None = None
    ) -> MPI.Request:
        """Begin `Barrier`."""
        return issue(self, "Barrier", (), algorithm, segment, None, timeout, tag)

    def Ibcast(
        self,
        buf: Any,
        root: int = 0,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
    ) -> MPI.Request:
        """Begin `Bcast`."""
        return issue(self, "Bcast", (buf, root), algorithm, segment, stream, timeout, tag)

    def Iallgather(
        self,
        sendbuf: Any,
        recvbuf: Any,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
    ) -> MPI.Request:
        """Begin `Allgather`."""
        return issue(self, "Allgather", (sendbuf, recvbuf), algorithm, segment, stream, timeout, tag)

    def Iallgatherv(
        self,
        sendbuf: Any,
        recvbuf: Any,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
    ) -> MPI.Request:
        """Begin `Allgatherv`."""
        return issue(self, "Allgatherv", (sendbuf, recvbuf), algorithm, segment, stream, timeout, tag)

    def Igather(
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
    ) -> MPI.Request:
        """Begin `Gather`."""
        return issue(self, "Gather", (sendbuf, recvbuf, root), algorithm, segment, stream, timeout, tag)

    def Igatherv(
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
    ) -> MPI.Request:
        """Begin `Gatherv`."""
        return issue(self, "Gatherv", (sendbuf, recvbuf, root), algorithm, segment, stream, timeout, tag)

    def Iscatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
    ) -> MPI.Request:
        """Begin `Scatter`."""
        return issue(self, "Scatter", (sendbuf, recvbuf, root), algorithm, segment, stream, timeout, tag)

    def Iscatterv(
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
    ) -> MPI.Request:
        """Begin `Scatterv`."""
        return issue(self, "Scatterv", (sendbuf, recvbuf, root), algorithm, segment, stream, timeout, tag)

    def Ialltoall(
        self,
        sendbuf: Any,
        recvbuf: Any,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
    ) -> MPI.Request:
        """Begin `Alltoall`."""
        return issue(self, "Alltoall", (sendbuf, recvbuf), algorithm, segment, stream, timeout, tag)

    def Ialltoallv(
        self,
        sendbuf: Any,
        recvbuf: Any,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
    ) -> MPI.Request:
        """Begin `Alltoallv`."""
        return issue(self, "Alltoallv", (sendbuf, recvbuf), algorithm, segment, stream, timeout, tag)

    def Ialltoallw(
        self,
        sendbuf: Any,
        recvbuf: Any,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
    ) -> MPI.Request:
        """Begin `Alltoallw`."""
        return issue(self, "Alltoallw", (sendbuf, recvbuf), algorithm, segment, stream, timeout, tag)


_BEGIN = """Begin `{0}`, and return while it is in flight.

{1}

Returns:
    A `hpcoll.comm.requests.request.Request`, or the MPI library's own where ``native`` runs or the call has ended at once. The
        buffers belong to the call until the request is done. Its `Wait` and `Test` raise the errors of the transport.
"""
_PLAN = """Plan `{0}` once, and return a request that runs it again and again; collective.

{1}

Returns:
    A `hpcoll.comm.requests.persistent_request.PersistentRequest`, or the MPI library's own where ``native`` runs. `Start` and
        `Wait` run the call, and raise the errors of the transport. The buffers belong to it in between. The first start waits until
        all ranks have made the request, and raises where these differ.
"""


def persistent(blocking: Callable[..., None]) -> Callable[..., MPI.Prequest]:
    """Return the method that plans a blocking one, with ``info`` behind its positional arguments as in mpi4py."""
    name, given = blocking.__name__, signature(blocking)
    info = Parameter("info", Parameter.POSITIONAL_OR_KEYWORD, default=MPI.INFO_NULL, annotation=MPI.Info)
    parameters, at = [*given.parameters.values()], 1 + len(METHODS[name].arguments)
    defaults = tuple(one.default for one in parameters[1:at])
    least = defaults.count(Parameter.empty)
    with_info = given.replace(
        parameters=[*parameters[:at], info, *parameters[at:]], return_annotation=MPI.Prequest
    )

    def plan(*arguments: Any, **keywords: Any) -> MPI.Prequest:
        comm, *given = arguments
        # as most are called: to bind arguments takes as long as all else
        if least <= len(given) < at and not keywords:
            return make_persistent(comm._context, name, (*given, *defaults[len(given) :]), None, None, None)
        bound = with_info.bind(*arguments, **keywords)
        bound.apply_defaults()
        comm, *arguments, _ = bound.args  # type: ignore[assignment]
        return make_persistent(comm._context, name, tuple(arguments), **{"stream": None} | bound.kwargs)

    named: Any = plan
    named.__name__, named.__qualname__ = (
        f"{name}_init",
        f"{blocking.__qualname__.partition('.')[0]}.{name}_init",
    )
    named.__doc__ = _text(_PLAN, blocking).replace("    algorithm:", "    info: Ignored.\n    algorithm:", 1)
    named.__signature__ = with_info
    return plan


def document(begins: Callable[..., MPI.Request], blocking: Callable[..., None]) -> None:
    """Give the method that begins a blocking one its docstring."""
    begins.__doc__ = _text(_BEGIN, blocking)


def _text(form: str, blocking: Callable[..., None]) -> str:
    return form.format(blocking.__name__, cleandoc(blocking.__doc__ or ""))


class PersistentCollectives(WithContext):
    """An intracommunicator whose collectives can be planned once: ``Start()`` and ``Wait()`` of the requests run them."""

    Allreduce_init = persistent(BlockingReductions.Allreduce)
    Reduce_init = persistent(BlockingReductions.Reduce)
    Reduce_scatter_block_init = persistent(BlockingReductions.Reduce_scatter_block)
    Reduce_scatter_init = persistent(BlockingReductions.Reduce_scatter)
    Scan_init = persistent(BlockingReductions.Scan)
    Exscan_init = persistent(BlockingReductions.Exscan)
    Barrier_init = persistent(BlockingReductions.Barrier)
    Bcast_init = persistent(BlockingMoves.Bcast)
    Allgather_init = persistent(BlockingMoves.Allgather)
    Allgatherv_init = persistent(BlockingMoves.Allgatherv)
    Gather_init = persistent(BlockingMoves.Gather)
    Gatherv_init = persistent(BlockingMoves.Gatherv)
    Scatter_init = persistent(BlockingMoves.Scatter)
    Scatterv_init = persistent(BlockingMoves.Scatterv)
    Alltoall_init = persistent(BlockingMoves.Alltoall)
    Alltoallv_init = persistent(BlockingMoves.Alltoallv)
    Alltoallw_init = persistent(BlockingMoves.Alltoallw)


for _name, _blocking in (vars(BlockingReductions) | vars(BlockingMoves)).items():
    if _name in METHODS:
        document(getattr(NonBlocking, f"I{_name.lower()}"), _blocking)
