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
    if not any(isinstance(item, MPI.Datatype) and item != MPI.DATATYPE_NULL and not item.is_predefined for item in spec):
        return spec
    return [_copy(item) if isinstance(item, MPI.Datatype) and not item.is_predefined else item for item in spec]


def _copy(datatype: MPI.Datatype) -> MPI.Datatype:
    copy = _Lasting(datatype.Dup())
    copy.name = datatype.name
    return copy
