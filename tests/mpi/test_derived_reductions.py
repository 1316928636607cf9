"""Reductions of derived datatypes, and of what is no number: in every form as plain mpi4py has it, results and refusals alike."""

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from mpi4py import MPI
from reference import ensure_none, fresh, unless

pytestmark = pytest.mark.mpi
COUNT = 2
REAL, PAIR = np.dtype("f8"), np.dtype([("x", "f8"), ("n", "i4")], align=True)
EVERY, THIRD = slice(None), slice(None, None, 3)
TYPES = {  # how each is made, the elements of its arrays, and which of these travel
    "contiguous": (lambda: MPI.DOUBLE.Create_contiguous(6), REAL, EVERY),
    "vector": (lambda: MPI.DOUBLE.Create_vector(2, 1, 3).Create_resized(0, 48), REAL, THIRD),
    "struct": (
        lambda: MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.INT]).Create_resized(0, 16),
        PAIR,
        EVERY,
    ),
    "duplicate": (MPI.DOUBLE.Dup, REAL, EVERY),
    "basic": (lambda: MPI.DOUBLE, REAL, EVERY),
    "text": (lambda: MPI.WCHAR, np.dtype("u4"), EVERY),
    "packed": (lambda: MPI.PACKED, np.dtype("u1"), EVERY),
}
METHODS = ("Allreduce", "Reduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan")
FORMS = ("blocking", "in flight", "first in flight", "persistent")
OLDER = "the library is older than persistent collectives"
OPS = ("predefined", "any order", "in order")


class Case(NamedTuple):
    """A reduction."""

    method: str
    form: str
    type: str
    op: str
    in_place: bool

    def run(self, comm: Any, *, frees: bool) -> list[Any]:
        """Return the numbers of each result, or that it is refused; ``frees``: the type is freed while it is in flight."""
        make, dtype, travels = TYPES[self.type]
        one, op = make(), _operator(dtype, travels, self.op)
        nblocks = comm.size if self.method.startswith("Reduce_scatter") else 1
        values = np.repeat((np.arange(nblocks * COUNT) + comm.rank) % 9 + 1, one.extent // dtype.itemsize)
        send = np.zeros(values.size, dtype)
        for part in _fields(send):
            part[:] = values
        recv, root = np.zeros_like(send), (comm.size - 1,) if self.method == "Reduce" else ()
        whole = COUNT * nblocks if self.method == "Reduce_scatter" else COUNT
        aliased = self.in_place and root in ((), (comm.rank,))
        given = [MPI.IN_PLACE if aliased else [send, whole, one], [recv, whole if aliased else COUNT, one]]
        given += [[COUNT] * comm.size] if self.method == "Reduce_scatter" else []
        call = {"blocking": self.method, "persistent": f"{self.method}_init"}.get(
            self.form, f"I{self.method.lower()}"
        )
        request, found = None, []
        if not one.is_predefined:
            one.Commit()
        try:
            for _ in range(1 if frees else 2):
                recv[:] = send if self.in_place else np.zeros_like(send)
                request = (
                    request
                    if self.form == "persistent" and request
                    else getattr(comm, call)(*given, op, *root)
                )
                if frees and not one.is_predefined:
                    one.Free()
                if self.form == "persistent":
                    request.Start()
                if request is not None:
                    request.Wait()
                result = recv[: values.size // nblocks][travels]  # the library leaves anything elsewhere
                found.append([field.tolist() for field in _fields(result)])
        except NotImplementedError:
            found.append(OLDER)
        except (MPI.Exception, ValueError):
            found.append("refused")
        for made in (request if self.form == "persistent" else None, one, op):
            if made and not getattr(made, "is_predefined", False):
                made.Free()
        return found


def _fields(array: np.ndarray) -> list[np.ndarray]:
    return [array[name] for name in array.dtype.names] if array.dtype.names else [array]


def _operator(dtype: np.dtype[Any], travels: slice, name: str) -> MPI.Op:
    """Sum, or write the digits of one number behind those of the other, which does not commute."""

    def combine(left: Any, right: Any, datatype: MPI.Datatype) -> None:
        for x, y in zip(
            *(_fields(np.frombuffer(memory, dtype)[travels]) for memory in (left, right)), strict=True
        ):
            y[:] = x * 10 ** (np.floor(np.log10(y)) + 1) + y if name == "in order" else x + y

    return MPI.SUM if name == "predefined" else MPI.Op.Create(combine, commute=name == "any order")


def _overruns(case: Case) -> bool:
    """Say whether MPICH 5.0.2 itself writes outside its memory: in ordered Reduce_scatters of types with gaps."""
    return (
        case.method.startswith("Reduce_scatter")
        and case.op == "in order"
        and case.type in ("vector", "struct")
    )


_ALL = [Case(*one) for one in product(METHODS, FORMS, TYPES, OPS, (False, True))]
CASES = [case for case in _ALL if MPI.get_vendor()[0] != "MPICH" or not _overruns(case)]


def test_as_plain_mpi4py(short: bool) -> None:
    """Both sides of a call in flight keep one type, which outlives the program's; operators keep their order."""
    comm, wrong = fresh(), []
    for case in CASES[:: 13 if short else 1]:
        ours = comm.Dup() if case.form == "first in flight" else comm  # whose context is made beside the call
        expected, found = (
            case.run(MPI.COMM_WORLD, frees=False),
            case.run(ours, frees="in flight" in case.form),
        )
        wrong += unless(OLDER in expected or found == expected[: len(found)], (case, expected, found))
        if ours is not comm:
            ours.Free()
    comm.Free()
    ensure_none(wrong)
