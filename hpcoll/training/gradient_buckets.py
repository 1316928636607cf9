"""Gradient buckets: the gradients of a data-parallel training, fused, and all-reduced while others are still being computed."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError, GradientError
from hpcoll.base.ops import AVG
from hpcoll.base.text import counted, meant, parse_nbytes
from hpcoll.comm.arguments.call import order_of
from hpcoll.comm.communicator import Communicator
from hpcoll.training.pace import StepPace
from hpcoll.training.parameters import agreed_parameters, as_array, device_of, module_of, type_of

BUCKET_NBYTES = 1 << 20  # measured: docs/evidence/training.md


class Bucket:
    """Gradients of some parameters in one array, which is one message.

    Attributes:
        members: The parameters by name, in the order in which their gradients are expected.
        flat: The gradients, in symmetric memory.
        wire: The array that is all-reduced: ``flat``, or a copy with another element type.
        waits_for: Number of members whose gradients are not ready.
    """

    def __init__(self, comm: Communicator, members: Mapping[str, Any], wire: np.dtype | None) -> None:
        self.members = members
        count = sum(array.size for array in members.values())
        first = next(iter(members.values()))
        self.flat = self.wire = as_array(comm.empty(count, first.dtype, device_of(first)))
        if wire is not None and wire != first.dtype:
            self.wire = as_array(comm.empty(count, wire, device_of(first)))
        self.waits_for = len(members)

    def __repr__(self) -> str:
        return f"<Bucket of {', '.join(self.members)}: {self.flat.nbytes} bytes>"

    def views(self) -> Iterator[tuple[str, Any]]:
        """Yield each member's name, and its gradient in ``flat`` with its shape."""
        start = 0
        for name, array in self.members.items():
            yield name, self.flat[start : start + array.size].reshape(array.shape)
            start += array.size


def cut(parameters: dict[str, Any], nbytes: int) -> list[dict[str, Any]]:
    """Divide parameters into buckets of about ``nbytes`` bytes and one element type each, the last parameter first."""
    buckets: list[dict[str, Any]] = []
    latest: dict[np.dtype, tuple[dict[str, Any], int]] = {}  # bucket and bytes
    for name, array in reversed(parameters.items()):
        members, size = latest.get(array.dtype, ({}, 0))
        if not members or size + array.nbytes > nbytes:
            members = {}
            size = 0
            buckets.append(members)
        members[name] = array
        latest[array.dtype] = members, size + array.nbytes
    return buckets


class GradientBuckets:
    """The gradients of all parameters, in buckets that are all-reduced in flight as soon as they are full.

    All ranks of the communicator make it, with the same parameters. They start buckets in the same order, in whatever order gradients
    become ready.

        buckets = hpcoll.GradientBuckets(comm, {"w1": w1, "b1": b1, "w2": w2})
        buckets.broadcast()                              # all ranks begin with the parameters of rank 0
        for batch in batches:
            for name, gradient in backward(batch):       # last layer first
                buckets.ready(name, gradient)
            buckets.wait()
            for name, parameter in parameters.items():
                parameter -= rate * buckets.gradients[name]

    Args:
        comm: Communicator of the ranks that train together.
        parameters: Arrays by name, or a list of arrays, whose numbers become their names. They are NumPy's, CuPy's or PyTorch's, of
            floating-point elements, all in one kind of memory, in the order in which the model uses them.
        bucket: Bytes of a bucket, as a number or a text such as ``"1M"``; a longer gradient has a bucket of its own.
        mean: Divide sums by the number of ranks.
        wire: Element type of messages, such as ``"float16"`` or ``"bfloat16"``; sums are computed in float32 and rounded once. None: the
            gradients' own.
        unused: Take a gradient that is not ready at `wait` for zero; else that is an error.
        overlap: All-reduce buckets in flight; False: one after another at `wait`. None: the first steps try both, and the faster stays.
            Without a free core, or a network that works by itself, calls in flight gain nothing.
        finite: Check gradients for NaN and infinities.
        algorithm: Algorithm of the allreduce, as in ``comm.Allreduce``.
        order: ``"rank"``: sums by one expression in rank order, as in ``comm.Allreduce``. Then ``bucket``, ``overlap`` and ``algorithm``
            change no bit of ``gradients``; the norm of `clip` still depends on ``bucket``.

    Attributes:
        gradients: Gradient of each parameter by name: this rank's, and after `wait` that of all ranks. Arrays of the parameters' shapes,
            the same objects in every step, which may be written in place.
        buckets: The buckets, in the order in which they are started.

    Raises:
        ArgumentError: on every rank, if parameters cannot be used, or they or settings differ; names rank and parameter or setting.

    Source:
        Li et al., PyTorch Distributed, VLDB 2020; Sergeev and Del Balso, Horovod, arXiv 1802.05799.
    """

    def __init__(
        self,
        comm: Communicator,
        parameters: Mapping[str, Any] | Sequence[Any],
        *,
        bucket: int | str = BUCKET_NBYTES,
        mean: bool = True,
        wire: Any = None,
        unused: bool = False,
        overlap: bool | None = None,
        finite: bool = False,
        algorithm: str | None = None,
        order: str | None = None,
    ) -> None:
        nbytes = parse_nbytes(bucket)
        order = None if order is None else order_of(order, comm.rank)
        settings = dict(
            bucket=nbytes, mean=mean, wire=str(wire), unused=unused, overlap=overlap, finite=finite
        )
        agreed = agreed_parameters(comm, parameters, settings | {"order": order})
        self._comm = comm
        self._how: Any = {"op": AVG if mean else MPI.SUM, "algorithm": algorithm, "order": order}
        self._unused = unused
        self._finite = finite
        self._pace = StepPace(comm, overlap)
        type_on_wire = None if wire is None else type_of(wire)
        self.buckets = [Bucket(comm, members, type_on_wire) for members in cut(agreed, nbytes)]
        self._bucket_of = {name: bucket for bucket in self.buckets for name in bucket.members}
        views = {name: view for bucket in self.buckets for name, view in bucket.views()}
        self.gradients: dict[str, Any] = {name: views[name] for name in agreed}
        self._collects = False  # inside of `no_sync`
        self._kept = set[str]()  # gradients that were accumulated there
        self._begin()

    def __repr__(self) -> str:
        parts = f"{counted(len(self.gradients), 'parameter')} in {counted(len(self.buckets), 'bucket')}"
        return f"<hpcoll.GradientBuckets: {parts}, rank {self._comm.rank} of {self._comm.size}>"

    @property
    def overlaps(self) -> bool:
        """Buckets of this step are all-reduced in flight."""
        return self._pace.overlaps

    def _begin(self) -> None:
        """Begin a new step."""
        self._ready = set[str]()
        self._started = list[Any]()
        self._not_finite = list[str]()
        for bucket in self.buckets:
            bucket.waits_for = len(bucket.members)

    def broadcast(self, root: int = 0) -> None:
        """Broadcast the parameters of one rank, into the parameters' arrays of the others; collective, between steps.

        Args:
            root: Rank whose parameters count.

        Raises:
            ArgumentError: a step has begun.
        """
        self._refuse_in_step("broadcast")
        for bucket in self.buckets:
            for name, view in bucket.views():
                view[...] = bucket.members[name]
            self._comm.Bcast(bucket.flat, root)
            for name, view in bucket.views():
                bucket.members[name][...] = view

    def ready(self, name: str | int, gradient: Any = None) -> None:
        """Announce this rank's gradient of a parameter; start its bucket if it was the last one missing.

        Args:
            name: Name of the parameter, or its number.
            gradient: Array of the parameter's shape, in its kind of memory. It is copied to ``gradients[name]``, or added to the sum of
                `no_sync`. None: the program has written ``gradients[name]`` in place.

        Raises:
            ArgumentError: no such parameter, a gradient that was ready before in this step, or one of another shape or kind of memory.
        """
        name = str(name)
        if name not in self.gradients:
            there = ", ".join(self.gradients) + meant(self.gradients, name)
            raise ArgumentError(f"rank {self._comm.rank}: no parameter {name!r}; there are {there}")
        if name in self._ready:
            raise ArgumentError(
                f"rank {self._comm.rank}: the gradient of {name!r} was ready before in this step; wait() ends a step"
            )
        if gradient is not None:
            self._take(name, gradient)
        if self._collects:
            self._kept.add(name)
            return
        if self._finite and not bool(module_of(self.gradients[name]).isfinite(self.gradients[name]).all()):
            self._not_finite.append(name)
        if not self._ready:
            self._pace.first_ready()
        self._ready.add(name)
        self._bucket_of[name].waits_for -= 1
        while len(self._started) < len(self.buckets) and not self.buckets[len(self._started)].waits_for:
            self._start(self.buckets[len(self._started)])

    def _take(self, name: str, gradient: Any) -> None:
        here = self.gradients[name]
        given = as_array(gradient)
        if (
            module_of(given) is not module_of(here)
            or given.shape != here.shape
            or given.dtype.kind not in "fV"
        ):
            wanted, got = (
                f"shape {array.shape} of {array.dtype} ({module_of(array).__name__})"
                for array in (here, given)
            )
            raise ArgumentError(
                f"rank {self._comm.rank}: the gradient of {name!r} must have {wanted}, got {got}"
            )
        if name in self._kept:
            here += given
        else:
            here[...] = given

    def _start(self, bucket: Bucket) -> None:
        if bucket.wire is not bucket.flat:
            bucket.wire[...] = bucket.flat
        if self._pace.overlaps:
            self._started.append(self._comm.Iallreduce(MPI.IN_PLACE, bucket.wire, **self._how))
        else:
            self._started.append(None)

    def wait(self) -> None:
        """End a step: wait until ``gradients`` are those of all ranks; collective.

        Raises:
            ArgumentError: gradients are missing on this rank, and ``unused`` is not set.
            GradientError: on every rank, with ``finite``: gradients are not finite; names parameters and ranks.
        """
        missing = [name for name in self.gradients if name not in self._ready]
        if missing and not (self._unused or set(missing) <= self._kept):
            names = ", ".join(missing)
            raise ArgumentError(
                f"rank {self._comm.rank}: wait() needs the gradients of {names}, of which ready() was not told"
            )
        for name in missing:
            if name not in self._kept:
                self.gradients[name][...] = 0
            self.ready(name)
        for bucket, request in zip(self.buckets, self._started, strict=True):
            if request is None:
                self._comm.Allreduce(MPI.IN_PLACE, bucket.wire, **self._how)
            else:
                request.Wait()
            if bucket.wire is not bucket.flat:
                bucket.flat[...] = bucket.wire
        wrong = self._not_finite
        self._kept = set()
        self._begin()
        self._pace.step_ended()
        if self._finite:
            self._check_finite(wrong)

    def _check_finite(self, wrong: list[str]) -> None:
        """Raise if sums are not finite; all ranks do, since they have the same sums."""
        if all(bool(module_of(bucket.flat).isfinite(bucket.flat).all()) for bucket in self.buckets):
            return
        of_ranks = self._comm.allgather(wrong)
        texts = [f"rank {rank}: {', '.join(names)}" for rank, names in enumerate(of_ranks) if names]
        raise GradientError(
            "gradients are not finite: "
            + ("; ".join(texts) or "the sum of finite ones is too large for its element type")
        )

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Return a context in which gradients are accumulated and not sent; the next step adds to them.

        A program that writes ``gradients`` in place must add to them itself.

        Raises:
            ArgumentError: a step has begun.
        """
        self._refuse_in_step("no_sync")
        self._collects = True
        try:
            yield
        finally:
            self._collects = False

    def clip(self, most: float) -> float:
        """Scale all gradients so that their norm over all parameters is at most ``most``; collective, between steps.

        Each rank adds up the squares of its share of the elements, in float64; all ranks get the same bits.

        Args:
            most: Largest norm, ``> 0``.

        Returns:
            The norm before.

        Raises:
            ArgumentError: a step has begun.
        """
        self._refuse_in_step("clip")
        squares = np.zeros(1)
        p = self._comm.size
        r = self._comm.rank
        for bucket in self.buckets:
            mine = bucket.flat[len(bucket.flat) * r // p : len(bucket.flat) * (r + 1) // p]
            squares += float((mine.astype(np.float64) ** 2).sum())
        self._comm.Allreduce(MPI.IN_PLACE, squares, order=self._how["order"])
        norm = math.sqrt(squares[0])
        if norm > most:
            for bucket in self.buckets:
                bucket.flat *= most / norm
        return norm

    def _refuse_in_step(self, method: str) -> None:
        if self._ready:
            ready = ", ".join(sorted(self._ready))
            raise ArgumentError(
                f"rank {self._comm.rank}: {method} in the middle of a step: {ready} are ready; wait() first"
            )
