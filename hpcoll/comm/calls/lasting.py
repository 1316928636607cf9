"""What a collective in flight must keep beyond the call: datatypes that the program may free."""

from typing import Any

from mpi4py import MPI


class _Lasting(MPI.Datatype):
    """A datatype that is freed with its last reference."""

    def __del__(self) -> None:
        if self != MPI.DATATYPE_NULL and not MPI.Is_finalized():
            self.Free()


def lasting(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """A call's arguments with duplicates of derived datatypes, which the program may free while the call is in flight."""
    return tuple(_lasting(spec) if isinstance(spec, list | tuple) else spec for spec in arguments)


def _lasting(spec: Any) -> Any:
    return [_copy(item) if _may_go(item) else item for item in spec] if any(map(_may_go, spec)) else spec


def _may_go(item: Any) -> bool:
    """Whether it is a datatype that the program may free; one of ours stays."""
    mine = not isinstance(item, MPI.Datatype) or isinstance(item, _Lasting)
    return not (mine or item == MPI.DATATYPE_NULL or item.is_predefined)


def _copy(datatype: MPI.Datatype) -> MPI.Datatype:
    copy = _Lasting(datatype.Dup())
    copy.name = datatype.name
    return copy
