"""The non-blocking and the persistent upper-case collectives with mpi4py's signatures, all made of the blocking ones.

Their docstrings are those of the blocking methods, with another first sentence and a request that is returned.
"""

from collections.abc import Callable
from inspect import Parameter, cleandoc, signature
from typing import Any, ParamSpec

from mpi4py import MPI

from hpcoll.comm.arguments.call import Time
from hpcoll.comm.arguments.methods import METHODS
from hpcoll.comm.context.attach import WithContext
from hpcoll.comm.context.start import issue, make_persistent
from hpcoll.comm.methods.blocking import Blocking
from hpcoll.comm.methods.keywords import Name, Nbytes, Op

_Given = ParamSpec("_Given")
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
_INFO = Parameter("info", Parameter.POSITIONAL_OR_KEYWORD, default=MPI.INFO_NULL, annotation=MPI.Info)


class _Reader:
    """The reader of a call's arguments: those of a blocking method, and others behind its positional ones."""

    def __init__(self, blocking: Callable[..., None], *others: Parameter) -> None:
        given = signature(blocking)
        parameters, at = [*given.parameters.values()], 1 + len(METHODS[blocking.__name__].arguments)
        self.signature = given.replace(parameters=[*parameters[:at], *others, *parameters[at:]])
        self._positional = [(parameter.name, parameter.default) for parameter in parameters[1:at]]
        # the defaults that are left, by the number of arguments that are given by position
        defaults = [default for _, default in self._positional]
        self._rest = {n: tuple(defaults[n:]) for n in range(defaults.count(Parameter.empty), at)}
        self._ignored = [parameter.name for parameter in others]
        self._keywords = {parameter.name for parameter in parameters[at:]}

    def read(
        self, given: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional arguments of the blocking method, and its keywords; TypeError where there are others."""
        if len(given) in self._rest and keywords.keys() <= self._keywords:
            return given + self._rest[len(given)], keywords
        others = keywords.copy()
        rest = [others.pop(name, default) for name, default in self._positional[len(given) :]]
        for name in self._ignored:
            others.pop(name, None)
        most = len(self._positional)
        lacks = any(value is Parameter.empty for value in rest)
        if lacks or len(given) > most or not others.keys() <= self._keywords:
            self.signature.bind(
                None, *given, **keywords
            )  # it raises, unless what is ignored is given by position
        return (*given[:most], *rest), others

    def documented(
        self, method: Callable[..., Any], name: str, blocking: Callable[..., None], form: str, returned: type
    ) -> Any:
        """Return a method with its name, its signature and its docstring."""
        named: Any = method
        named.__name__ = name
        named.__qualname__ = f"{blocking.__qualname__.partition('.')[0]}.{name}"
        named.__doc__ = form.format(blocking.__name__, cleandoc(blocking.__doc__ or ""))
        named.__signature__ = self.signature.replace(return_annotation=returned)
        return named


def _reduction(name: str) -> Callable[..., MPI.Request]:
    def _begin(
        self: WithContext,
        sendbuf: Any,
        recvbuf: Any,
        op: Op = MPI.SUM,
        extra: Any = ...,
        algorithm: Name = None,
        segment: Nbytes = None,
        timeout: Time = None,
        tag: str | None = None,
        stream: Any = None,
        order: str | None = None,
    ) -> MPI.Request:
        if extra is not ...:
            raise TypeError(f"I{name.lower()}() takes keywords by name only")
        return issue(self, name, (sendbuf, recvbuf, op), algorithm, segment, stream, timeout, tag, order)

    return _begin


def _between_buffers(name: str) -> Callable[..., MPI.Request]:
    def _begin(
        self: WithContext,
        sendbuf: Any,
        recvbuf: Any,
        extra: Any = ...,
        algorithm: Name = None,
        segment: Nbytes = None,
        timeout: Time = None,
        tag: str | None = None,
        stream: Any = None,
    ) -> MPI.Request:
        if extra is not ...:
            raise TypeError(f"I{name.lower()}() takes keywords by name only")
        return issue(self, name, (sendbuf, recvbuf), algorithm, segment, stream, timeout, tag)

    return _begin


def _broadcast(name: str) -> Callable[..., MPI.Request]:
    def _begin(
        self: WithContext,
        buf: Any,
        root: int = 0,
        extra: Any = ...,
        algorithm: Name = None,
        segment: Nbytes = None,
        timeout: Time = None,
        tag: str | None = None,
        stream: Any = None,
    ) -> MPI.Request:
        if extra is not ...:
            raise TypeError(f"I{name.lower()}() takes keywords by name only")
        return issue(self, name, (buf, root), algorithm, segment, stream, timeout, tag)

    return _begin


def _rooted(name: str) -> Callable[..., MPI.Request]:
    def _begin(
        self: WithContext,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        extra: Any = ...,
        algorithm: Name = None,
        segment: Nbytes = None,
        timeout: Time = None,
        tag: str | None = None,
        stream: Any = None,
    ) -> MPI.Request:
        if extra is not ...:
            raise TypeError(f"I{name.lower()}() takes keywords by name only")
        return issue(self, name, (sendbuf, recvbuf, root), algorithm, segment, stream, timeout, tag)

    return _begin


def _rooted_reduction(name: str) -> Callable[..., MPI.Request]:
    def _begin(
        self: WithContext,
        sendbuf: Any,
        recvbuf: Any,
        op: Op = MPI.SUM,
        root: int = 0,
        extra: Any = ...,
        algorithm: Name = None,
        segment: Nbytes = None,
        timeout: Time = None,
        tag: str | None = None,
        stream: Any = None,
        order: str | None = None,
    ) -> MPI.Request:
        if extra is not ...:
            raise TypeError(f"I{name.lower()}() takes keywords by name only")
        return issue(
            self, name, (sendbuf, recvbuf, op, root), algorithm, segment, stream, timeout, tag, order
        )

    return _begin


# by the arguments of the methods: CPython is quickest with these, as in `hpcoll.comm.methods.blocking_shapes`
_SHAPES = {
    ("sendbuf", "recvbuf", "op"): _reduction,
    ("sendbuf", "recvbuf"): _between_buffers,
    ("buf", "root"): _broadcast,
    ("sendbuf", "recvbuf", "root"): _rooted,
    ("sendbuf", "recvbuf", "op", "root"): _rooted_reduction,
}


def beginning(blocking: Callable[_Given, None]) -> Callable[_Given, MPI.Request]:
    """Return the method that begins a blocking one."""
    name, reader = blocking.__name__, _Reader(blocking)

    def begin(self: WithContext, *given: Any, **keywords: Any) -> MPI.Request:
        given, keywords = reader.read(given, keywords)
        return issue(self, name, given, **keywords)

    shape = _SHAPES.get(METHODS[name].arguments)
    made: Callable[_Given, MPI.Request] = reader.documented(
        shape(name) if shape else begin, f"I{name.lower()}", blocking, _BEGIN, MPI.Request
    )
    return made


def persistent(blocking: Callable[..., None]) -> Callable[..., MPI.Prequest]:
    """Return the method that plans a blocking one, with ``info`` behind its positional arguments as in mpi4py."""
    name, reader = blocking.__name__, _Reader(blocking, _INFO)

    def plan(self: WithContext, *given: Any, **keywords: Any) -> MPI.Prequest:
        given, keywords = reader.read(given, keywords)
        return make_persistent(self._context, name, given, **keywords)

    made: Callable[..., MPI.Prequest] = reader.documented(plan, f"{name}_init", blocking, _PLAN, MPI.Prequest)
    made.__doc__ = (made.__doc__ or "").replace("    algorithm:", "    info: Ignored.\n    algorithm:", 1)
    return made


class NonBlocking:
    """An intracommunicator whose collectives may be in flight while the program goes on.

    All ranks must issue the calls of a communicator in the same order, as MPI demands.
    """

    Iallreduce = beginning(Blocking.Allreduce)
    Ireduce = beginning(Blocking.Reduce)
    Ireduce_scatter_block = beginning(Blocking.Reduce_scatter_block)
    Ireduce_scatter = beginning(Blocking.Reduce_scatter)
    Iscan = beginning(Blocking.Scan)
    Iexscan = beginning(Blocking.Exscan)
    Ibarrier = beginning(Blocking.Barrier)
    Ibcast = beginning(Blocking.Bcast)
    Iallgather = beginning(Blocking.Allgather)
    Iallgatherv = beginning(Blocking.Allgatherv)
    Igather = beginning(Blocking.Gather)
    Igatherv = beginning(Blocking.Gatherv)
    Iscatter = beginning(Blocking.Scatter)
    Iscatterv = beginning(Blocking.Scatterv)
    Ialltoall = beginning(Blocking.Alltoall)
    Ialltoallv = beginning(Blocking.Alltoallv)
    Ialltoallw = beginning(Blocking.Alltoallw)


class PersistentCollectives(WithContext):
    """An intracommunicator whose collectives can be planned once: ``Start()`` and ``Wait()`` of the requests run them."""

    Allreduce_init = persistent(Blocking.Allreduce)
    Reduce_init = persistent(Blocking.Reduce)
    Reduce_scatter_block_init = persistent(Blocking.Reduce_scatter_block)
    Reduce_scatter_init = persistent(Blocking.Reduce_scatter)
    Scan_init = persistent(Blocking.Scan)
    Exscan_init = persistent(Blocking.Exscan)
    Barrier_init = persistent(Blocking.Barrier)
    Bcast_init = persistent(Blocking.Bcast)
    Allgather_init = persistent(Blocking.Allgather)
    Allgatherv_init = persistent(Blocking.Allgatherv)
    Gather_init = persistent(Blocking.Gather)
    Gatherv_init = persistent(Blocking.Gatherv)
    Scatter_init = persistent(Blocking.Scatter)
    Scatterv_init = persistent(Blocking.Scatterv)
    Alltoall_init = persistent(Blocking.Alltoall)
    Alltoallv_init = persistent(Blocking.Alltoallv)
    Alltoallw_init = persistent(Blocking.Alltoallw)
