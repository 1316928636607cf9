"""Arguments of the collectives that move data, checked and described as plain bytes.

Ranks of one call may describe the same elements differently: a root gathers into columns what others send as rows. So nothing here depends
on how they lie: each rank has maps of its own, by which compiled code packs what it stages and unpacks what has come.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.arguments.buffer_specs import Element
from hpcoll.comm.arguments.buffers import Resolved, check_overlap, check_same_order, resolve
from hpcoll.comm.arguments.call import Call, is_in_place
from hpcoll.runtime.engine.entry import call_compiled
from hpcoll.runtime.gpu.arrays import DeviceArray
from hpcoll.runtime.program.fields import PACK, UNPACK
from hpcoll.runtime.program.layouts import UNMAPPED, Layout, Map

_BYTE = np.dtype(np.uint8)
BYTES = Layout.of_run(1).table(1)
_Places = tuple[tuple[int, int], ...]  # (displ, nbytes) of blocks


class PlainBytes(NamedTuple):
    """A buffer as bytes: the caller's own, or copied ones.

    Attributes:
        places: Of blocks that have sizes of their own; in a packed copy where there is a map.
        element: Element type, as in `Call`.
    """

    address: int
    nbytes: int
    places: _Places
    keep: object
    element: Element
    copied: bool = False
    map: Map | None = None


NOTHING = PlainBytes(0, 0, (), None, "")


def bcast(buf: Any, root: int, rank: int, nranks: int) -> Call | None:
    """Describe a Bcast; None when only the MPI library understands the buffer.

    Raises:
        ArgumentError: Bad buffer; likewise for all functions of this module.
    """
    one = resolve(buf, name="buf", rank=rank, writable=rank != root)
    if one is None:
        return None
    data = plain_bytes(one)
    return move("bcast", data, data, data.nbytes, root, in_place=True)


def gather(
    collective: str, sendbuf: Any, recvbuf: Any, root: int, rank: int, nranks: int, *, varies: bool
) -> Call | None:
    """Describe an allgather or a gather, whose recvbuf counts at the root alone.

    Args:
        collective: "allgather" or "gather".
        sendbuf: The caller's.
        recvbuf: The caller's.
        root: Root of a gather.
        rank: Rank of this process.
        nranks: Ranks of the communicator.
        varies: Blocks have sizes of their own. Who receives knows all sizes, the others their own.
    """
    receives, in_place = collective == "allgather" or rank == root, is_in_place(sendbuf)
    _check_in_place(in_place, receives, rank, "sendbuf")
    recv = _all_blocks(recvbuf, "recvbuf", rank, nranks, varies=varies) if receives else None
    send = None if in_place else resolve(sendbuf, name="sendbuf", rank=rank)
    if (receives and recv is None) or (send is None and not in_place):
        return None
    if send is not None and recv is not None and not varies:
        check_same_order(sendbuf, recvbuf, rank, received=nranks)
    target = plain_bytes(recv) if recv is not None else NOTHING
    own, in_place = _own_block(send, recv, target.places, "recvbuf", rank, nranks)
    source = target if in_place or send is None else plain_bytes(send)
    if not varies:
        return move(collective, source, target, own, root, in_place=in_place, aliased=in_place)
    sizes = tuple(nbytes for _, nbytes in target.places)
    blocks = ((0, own),), target.places, sizes
    return move(
        collective,
        source,
        target,
        sum(sizes) or own,
        root,
        in_place=in_place,
        aliased=in_place,
        blocks=blocks,
    )


def scatter(sendbuf: Any, recvbuf: Any, root: int, rank: int, nranks: int, *, varies: bool) -> Call | None:
    """Describe a scatter, whose sendbuf counts at the root alone; arguments as `gather`."""
    sends, in_place = rank == root, is_in_place(recvbuf)
    _check_in_place(in_place, sends, rank, "recvbuf")
    send = _all_blocks(sendbuf, "sendbuf", rank, nranks, varies=varies) if sends else None
    recv = None if in_place else resolve(recvbuf, name="recvbuf", rank=rank, writable=True)
    if (sends and send is None) or (recv is None and not in_place):
        return None
    if send is not None and recv is not None and not varies:
        check_same_order(sendbuf, recvbuf, rank, sent=nranks)
    source = plain_bytes(send) if send is not None else NOTHING
    own, in_place = _own_block(recv, send, source.places, "sendbuf", rank, nranks)
    target = NOTHING if recv is None else plain_bytes(recv)
    if not varies:
        return move("scatter", source, target, own, root, in_place=in_place, aliased=in_place)
    sizes = tuple(nbytes for _, nbytes in source.places)
    blocks = source.places, ((0, own),), sizes
    return move(
        "scatter", source, target, sum(sizes) or own, root, in_place=in_place, aliased=in_place, blocks=blocks
    )


def alltoall(sendbuf: Any, recvbuf: Any, rank: int, nranks: int, *, varies: bool) -> Call | None:
    """Describe an alltoall; in place it sends a copy. Where blocks vary, every rank knows the sizes of its own alone."""
    recv = _all_blocks(recvbuf, "recvbuf", rank, nranks, varies=varies)
    send = recv if is_in_place(sendbuf) else _all_blocks(sendbuf, "sendbuf", rank, nranks, varies=varies)
    if recv is None or send is None:
        return None
    if not varies:
        if send.nbytes != recv.nbytes or recv.nbytes % nranks:
            raise ArgumentError(
                f"rank {rank}: recvbuf needs {send.nbytes} bytes in {nranks} equal blocks, got {recv.nbytes}"
            )
        check_same_order(sendbuf, recvbuf, rank)
    aliased = send is recv or check_overlap(send, recv, rank)
    source, copied = sent_aside(send) if aliased else (plain_bytes(send), 0)
    target = plain_bytes(recv)
    if not varies:
        return move("alltoall", source, target, recv.nbytes // nranks, 0, aliased=aliased, copied=copied)
    (_, sent), (_, received) = source.places[rank], target.places[rank]
    if sent != received:
        raise ArgumentError(
            f"rank {rank}: block {rank} of recvbuf needs the {sent} bytes that sendbuf has for this rank, got {received}"
        )
    return move(
        "alltoall",
        source,
        target,
        source.nbytes,
        0,
        aliased=aliased,
        copied=copied,
        blocks=(source.places, target.places, ()),
    )


def _all_blocks(spec: Any, name: str, rank: int, nranks: int, *, varies: bool) -> Resolved | None:
    """Resolve a buffer with a block for each rank."""
    nblocks, nparts = (nranks, 1) if varies else (None, nranks)
    return resolve(spec, name=name, rank=rank, nblocks=nblocks, nparts=nparts, writable=name == "recvbuf")


def _own_block(
    one: Resolved | None, many: Resolved | None, places: _Places, name: str, rank: int, nranks: int
) -> tuple[int, bool]:
    """Return the bytes of this rank's block, and whether it lies in its place among all; refuse any other overlap.

    Args:
        one: The block; None where it is in place.
        many: The buffer called ``name``, with all blocks; None where this rank has none.
        places: Places of blocks that have sizes of their own, else empty.
        name: For error texts.
        rank: Rank of this process.
        nranks: Ranks of the communicator.
    """
    if many is None:
        assert one is not None
        return one.nbytes, False
    first, size = places[rank] if places else (rank * (many.nbytes // nranks), many.nbytes // nranks)
    own = size if one is None else one.nbytes
    if places and size != own:
        raise ArgumentError(f"rank {rank}: block {rank} of {name} needs {own} bytes, got {size}")
    if not places and many.nbytes != own * nranks:
        raise ArgumentError(
            f"rank {rank}: {name} needs {nranks} blocks of {own} bytes, got {many.nbytes} bytes"
        )
    if one is None or one.map is not None or many.map is not None:
        return own, one is None
    return own, own > 0 and (one.address == many.address + first or check_overlap(one, many, rank))


def _check_in_place(in_place: bool, significant: bool, rank: int, name: str) -> None:
    if in_place and not significant:
        raise ArgumentError(f"rank {rank}: only the root may pass MPI.IN_PLACE as {name}")


def move(collective: str, source: PlainBytes, target: PlainBytes, count: int, root: int, **more: Any) -> Call:
    """Return the call that moves bytes; ``more`` are attributes of `Call`."""
    maps = UNMAPPED if source.map is target.map is None else (source.map, target.map)
    return Call(
        collective,
        source.address,
        target.address,
        count,
        _BYTE,
        root=root,
        keep=(source.keep, target.keep),
        as_given=not (source.copied or target.copied),
        element=target.element if source is NOTHING else source.element,
        maps=maps,
        **more,
    )


def plain_bytes(one: Resolved) -> PlainBytes:
    """Return a buffer as bytes."""
    if one.map is None:
        size, places = one.dtype.itemsize, ()  # type: int, _Places
        if one.counts and one.displs:
            places = tuple(
                [(displ * size, count * size) for displ, count in zip(one.displs, one.counts, strict=True)]
            )
        return PlainBytes(one.address, one.nbytes, places, one, one.element)
    return PlainBytes(one.address, one.nbytes, packed_places(_sizes(one)), one, one.element, map=one.map)


def sent_aside(send: Resolved) -> tuple[PlainBytes, int]:
    """Return the bytes of a buffer whose memory results overwrite, and how many of them are to be copied before anything else.

    Where blocks or elements do not follow each other, a copy is made now, block after block; on a GPU all that is spanned is copied later.
    """
    if send.map is None and send.counts is None:
        return plain_bytes(send), send.nbytes
    if send.gpu is not None and send.map is None:
        first, end = send.gpu.span
        return plain_bytes(send), end - first if send.nbytes else 0
    return as_copied(plain_bytes(send)), 0


def _sizes(one: Resolved) -> list[int]:
    return [count * one.dtype.itemsize for count in one.counts or ()]


def as_copied(one: PlainBytes) -> PlainBytes:
    """Return a copy, block after block: in host memory, or one that is packed later on a GPU."""
    sizes, every = [nbytes for _, nbytes in one.places], _map(one)
    if isinstance(one.keep, DeviceArray) or getattr(one.keep, "gpu", None) is not None:
        return one._replace(map=every, places=packed_places(sizes))
    packed = np.empty(one.nbytes, np.uint8)
    call_compiled(PACK, every.address, one.address, packed.ctypes.data, one.nbytes)
    return PlainBytes(packed.ctypes.data, one.nbytes, packed_places(sizes), packed, one.element, copied=True)


def packed_places(sizes: Sequence[int]) -> _Places:
    """Return the places of blocks of these sizes one behind the other."""
    return tuple(zip(accumulate(sizes[:-1], initial=0), sizes, strict=True)) if sizes else ()


def pack(one: Resolved) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a copy of the bytes that travel, block after block, of shape (nbytes,): plain bytes whatever the datatype."""
    packed: np.ndarray[Any, np.dtype[np.uint8]] = as_copied(plain_bytes(one)).keep  # type: ignore[assignment]
    return packed


def unpack(packed: np.ndarray[Any, np.dtype[np.uint8]], one: Resolved) -> None:
    """Store packed bytes, of shape (nbytes,), in the buffer."""
    every = _map(plain_bytes(one))
    call_compiled(UNPACK, every.address, one.address, packed.ctypes.data, one.nbytes)


def _map(one: PlainBytes) -> Map:
    return one.map or Map((nbytes, displ, BYTES) for displ, nbytes in one.places or ((0, one.nbytes),))
