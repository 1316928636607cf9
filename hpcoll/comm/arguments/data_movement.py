"""Arguments of the collectives that move data, checked and described as plain bytes.

Ranks of one call may describe the same elements differently (a root gathers into columns what others send as rows), so
nothing here depends on how they lie: derived datatypes are packed on the rank that has them.
"""

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.arguments import gpu_staging
from hpcoll.comm.arguments.buffer_specs import Element
from hpcoll.comm.arguments.buffers import Resolved, resolve
from hpcoll.comm.arguments.call import Call, is_in_place
from hpcoll.comm.arguments.derived_types import pack, unpack
from hpcoll.comm.arguments.overlap import check_overlap, check_same_order
from hpcoll.runtime.gpu.device import gpu_of

_BYTE = np.dtype(np.uint8)
_Places = tuple[tuple[int, int], ...]  # (displ, nbytes) of blocks


class _Bytes(NamedTuple):
    """A buffer as plain bytes, the caller's own, copied or packed ones; ``finish`` unpacks what was received, ``before`` fills GPU memory.

    ``element`` is as in `Call`.
    """

    address: int
    nbytes: int
    places: _Places
    keep: object
    element: Element
    finish: Callable[[], None] | None = None
    copied: bool = False
    packed: bool = False
    before: tuple[gpu_staging.Launch, ...] = ()


_NOTHING = _Bytes(0, 0, (), None, "")


def _plain(one: Resolved, *, sends: bool = False, receives: bool = False) -> _Bytes:
    if one.gpu is not None and not one.gpu.order:
        filled = gpu_staging.pack(gpu_of(one.gpu.ordinal), one.gpu)
        keep = (filled.memory, one.owner)
        return _Bytes(filled.memory.address, one.nbytes, _packed_places(one), keep, one.element, copied=True, before=(filled.fill,))
    if one.datatype is None:
        size = one.dtype.itemsize
        places = tuple((displ * size, count * size) for displ, count in zip(one.displs or (), one.counts or (), strict=True))
        return _Bytes(one.address, one.nbytes, places, one.owner, one.element)
    packed = pack(one) if sends else np.empty(one.nbytes, np.uint8)
    finish = (lambda: unpack(packed, one)) if receives else None
    return _Bytes(packed.ctypes.data, one.nbytes, _packed_places(one), (packed, one.owner), one.element, finish, packed=True)


def _packed_places(one: Resolved) -> _Places:
    sizes = [count * one.dtype.itemsize for count in one.counts or ()]
    return tuple(zip(accumulate(sizes[:-1], initial=0), sizes, strict=True)) if sizes else ()


def bcast(buf: Any, root: int, rank: int, nranks: int) -> Call | None:
    """Bcast; None when only the MPI library understands the buffer.

    Raises:
        ArgumentError: bad buffer; likewise for all functions of this module.
    """
    one = resolve(buf, name="buf", rank=rank, writable=rank != root)
    if one is None:
        return None
    data = _plain(one, sends=rank == root, receives=rank != root)
    return _call("bcast", data, data, data.nbytes, root, in_place=True)


def allgather(sendbuf: Any, recvbuf: Any, rank: int, nranks: int) -> Call | None:
    """Allgather."""
    return _gathered("allgather", sendbuf, recvbuf, 0, rank, nranks, receives=True)


def gather(sendbuf: Any, recvbuf: Any, root: int, rank: int, nranks: int) -> Call | None:
    """Gather; only the root's recvbuf counts."""
    return _gathered("gather", sendbuf, recvbuf, root, rank, nranks, receives=rank == root)


def _gathered(collective: str, sendbuf: Any, recvbuf: Any, root: int, rank: int, nranks: int, *, receives: bool) -> Call | None:
    in_place = is_in_place(sendbuf)
    _check_in_place(in_place, receives, rank, "sendbuf")
    recv = resolve(recvbuf, name="recvbuf", rank=rank, nparts=nranks, writable=True) if receives else None
    send = None if in_place else resolve(sendbuf, name="sendbuf", rank=rank)
    if (receives and recv is None) or (send is None and not in_place):
        return None
    block = send.nbytes if send is not None else recv.nbytes // nranks  # type: ignore[union-attr]
    if recv is not None and recv.nbytes != block * nranks:
        raise ArgumentError(f"rank {rank}: recvbuf needs {nranks} blocks of {block} bytes, got {recv.nbytes} bytes")
    if send is not None and recv is not None:
        check_same_order(sendbuf, recvbuf, rank, received=nranks)
    if send is not None and recv is not None and recv.datatype is None and send.datatype is None:
        in_place = _is_own_block(send, recv, recv.address + rank * block, rank)
    target = _plain(recv, sends=in_place, receives=True) if recv is not None else _NOTHING
    source = target if in_place or send is None else _plain(send, sends=True)
    return _call(collective, source, target, block, root, in_place=in_place, aliased=in_place)


def scatter(sendbuf: Any, recvbuf: Any, root: int, rank: int, nranks: int) -> Call | None:
    """Scatter; only the root's sendbuf counts."""
    sends = rank == root
    in_place = is_in_place(recvbuf)
    _check_in_place(in_place, sends, rank, "recvbuf")
    send = resolve(sendbuf, name="sendbuf", rank=rank, nparts=nranks) if sends else None
    recv = None if in_place else resolve(recvbuf, name="recvbuf", rank=rank, writable=True)
    if (sends and send is None) or (recv is None and not in_place):
        return None
    block = recv.nbytes if recv is not None else send.nbytes // nranks  # type: ignore[union-attr]
    if send is not None and send.nbytes != block * nranks:
        raise ArgumentError(f"rank {rank}: sendbuf needs {nranks} blocks of {block} bytes, got {send.nbytes} bytes")
    if send is not None and recv is not None:
        check_same_order(sendbuf, recvbuf, rank, sent=nranks)
    if send is not None and recv is not None and recv.datatype is None and send.datatype is None:
        in_place = _is_own_block(recv, send, send.address + rank * block, rank)
    source = _plain(send, sends=True) if send is not None else _NOTHING
    target = _NOTHING if recv is None else _plain(recv, receives=True)
    return _call("scatter", source, target, block, root, in_place=in_place, aliased=in_place)


def alltoall(sendbuf: Any, recvbuf: Any, rank: int, nranks: int) -> Call | None:
    """Alltoall; in place by a copy of what is sent."""
    recv = resolve(recvbuf, name="recvbuf", rank=rank, nparts=nranks, writable=True)
    send = recv if is_in_place(sendbuf) else resolve(sendbuf, name="sendbuf", rank=rank, nparts=nranks)
    if recv is None or send is None:
        return None
    if send.nbytes != recv.nbytes or recv.nbytes % nranks:
        raise ArgumentError(f"rank {rank}: recvbuf needs {send.nbytes} bytes in {nranks} equal blocks, got {recv.nbytes}")
    check_same_order(sendbuf, recvbuf, rank)
    aliased = send is recv or check_overlap(send, recv, rank)
    copied = send.nbytes if aliased and send.datatype is None else 0
    source = _copied(send) if aliased and not copied else _plain(send, sends=True)
    return _call("alltoall", source, _plain(recv, receives=True), recv.nbytes // nranks, 0, aliased=aliased, copied=copied)


def allgatherv(sendbuf: Any, recvbuf: Any, rank: int, nranks: int) -> Call | None:
    """Allgatherv: every rank knows all counts."""
    return _gathered_blocks("allgather", sendbuf, recvbuf, 0, rank, nranks, receives=True)


def gatherv(sendbuf: Any, recvbuf: Any, root: int, rank: int, nranks: int) -> Call | None:
    """Gatherv: the root knows all counts, the others their own."""
    return _gathered_blocks("gather", sendbuf, recvbuf, root, rank, nranks, receives=rank == root)


def _gathered_blocks(collective: str, sendbuf: Any, recvbuf: Any, root: int, rank: int, nranks: int, *, receives: bool) -> Call | None:
    in_place = is_in_place(sendbuf)
    _check_in_place(in_place, receives, rank, "sendbuf")
    recv = resolve(recvbuf, name="recvbuf", rank=rank, nblocks=nranks, writable=True) if receives else None
    send = None if in_place else resolve(sendbuf, name="sendbuf", rank=rank)
    if (receives and recv is None) or (send is None and not in_place):
        return None
    target = _plain(recv, sends=in_place, receives=True) if recv is not None else _NOTHING
    own = send.nbytes if send is not None else target.places[rank][1]
    if recv is not None and target.places[rank][1] != own:
        raise ArgumentError(f"rank {rank}: block {rank} of recvbuf needs {own} bytes, got {target.places[rank][1]}")
    source = target if send is None else _plain(send, sends=True)
    if send is not None and recv is not None and recv.datatype is None and send.datatype is None:
        in_place = _is_own_block(send, recv, recv.address + target.places[rank][0], rank)
    sizes = tuple(nbytes for _, nbytes in target.places)
    return _call(
        collective, source, target, sum(sizes) or own, root, in_place=in_place, aliased=in_place, blocks=(((0, own),), target.places, sizes)
    )


def scatterv(sendbuf: Any, recvbuf: Any, root: int, rank: int, nranks: int) -> Call | None:
    """Scatterv: the root knows all counts, the others their own."""
    sends, in_place = rank == root, is_in_place(recvbuf)
    _check_in_place(in_place, sends, rank, "recvbuf")
    send = resolve(sendbuf, name="sendbuf", rank=rank, nblocks=nranks) if sends else None
    recv = None if in_place else resolve(recvbuf, name="recvbuf", rank=rank, writable=True)
    if (sends and send is None) or (recv is None and not in_place):
        return None
    source = _plain(send, sends=True) if send is not None else _NOTHING
    own = recv.nbytes if recv is not None else source.places[rank][1]
    if send is not None and source.places[rank][1] != own:
        raise ArgumentError(f"rank {rank}: recvbuf needs {source.places[rank][1]} bytes, got {own}")
    if send is not None and recv is not None and recv.datatype is None and send.datatype is None:
        in_place = _is_own_block(recv, send, send.address + source.places[rank][0], rank)
    target = _NOTHING if recv is None else _plain(recv, receives=True)
    sizes = tuple(nbytes for _, nbytes in source.places)
    return _call(
        "scatter", source, target, sum(sizes) or own, root, in_place=in_place, aliased=in_place, blocks=(source.places, ((0, own),), sizes)
    )


def alltoallv(sendbuf: Any, recvbuf: Any, rank: int, nranks: int) -> Call | None:
    """Alltoallv: every rank knows what it sends and receives; in place by a copy of what is sent."""
    recv = resolve(recvbuf, name="recvbuf", rank=rank, nblocks=nranks, writable=True)
    send = recv if is_in_place(sendbuf) else resolve(sendbuf, name="sendbuf", rank=rank, nblocks=nranks)
    if recv is None or send is None:
        return None
    aliased = send is recv or check_overlap(send, recv, rank)
    source = _copied(send) if aliased else _plain(send, sends=True)
    target = _plain(recv, receives=True)
    if source.places[rank][1] != target.places[rank][1]:
        sent, received = source.places[rank][1], target.places[rank][1]
        raise ArgumentError(f"rank {rank}: block {rank} of recvbuf needs the {sent} bytes that sendbuf has for this rank, got {received}")
    return _call("alltoall", source, target, source.nbytes, 0, aliased=aliased, blocks=(source.places, target.places, ()))


def _call(collective: str, source: _Bytes, target: _Bytes, count: int, root: int, **more: Any) -> Call:
    keep = (source.keep, target.keep)
    copied, packed = source.copied or target.copied, source.packed or target.packed
    element = target.element if source is _NOTHING else source.element
    more |= {"element": element, "before": source.before, "finish": target.finish, "keep": keep}
    more |= {"as_given": not copied and not packed, "packed": packed and not copied}
    return Call(collective, source.address, target.address, count, _BYTE, root=root, **more)


def _copied(send: Resolved) -> _Bytes:
    """What an in-place alltoall sends: a copy, block after block; on a GPU, of all that the blocks span."""
    if send.gpu is not None:
        places, (first, end) = _plain(send).places, send.gpu.span
        copied = gpu_staging.copy(gpu_of(send.gpu.ordinal), first, end - first)
        return _Bytes(copied.memory.address, send.nbytes, places, copied.memory, send.element, copied=True, before=(copied.fill,))
    packed = pack(send)
    return _Bytes(packed.ctypes.data, send.nbytes, _packed_places(send), packed, send.element, copied=True)


def _check_in_place(in_place: bool, significant: bool, rank: int, name: str) -> None:
    if in_place and not significant:
        raise ArgumentError(f"rank {rank}: only the root may pass MPI.IN_PLACE as {name}")


def _is_own_block(one: Resolved, many: Resolved, own_address: int, rank: int) -> bool:
    """Whether a single block lies where it belongs among all of them; refuses any other overlap."""
    return one.nbytes > 0 and (one.address == own_address or check_overlap(one, many, rank))
