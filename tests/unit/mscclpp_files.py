"""Small execution plans of MSCCL++, for tests."""

from typing import Any

_Op = dict[str, Any]


def op(
    name: str,
    src: Any = None,
    dst: Any = None,
    *,
    kind: str = "memory",
    ids: list[int] | None = None,
    tbg: Any = None,
    **more: Any,
) -> _Op:
    """An operation; ``src`` and ``dst``: runs ``(buffer or number of a remote one, index, size)``."""
    found: _Op = {"name": name, "channel_type": kind, **more}
    for key, runs in (("src_buff", src), ("dst_buff", dst)):
        if runs is not None:
            found[key] = [
                {"type" if isinstance(b, str) else "buffer_id": b, "index": i, "size": n} for b, i, n in runs
            ]
    if ids is not None:
        found["channel_ids"] = ids
    if tbg:
        found["tbg_info"] = {"tb_id": tbg[0], "tbg_size": tbg[1]}
    return found


def gpu(
    rank: int,
    chunks: tuple[int, int, int],
    peers: list[int],
    remotes: list[tuple[int, str]],
    blocks: list[list[_Op]],
    **more: Any,
) -> Any:
    """A gpu: each thread block has a channel of each kind to each peer, and all remote buffers."""
    kinds = ("memory", "port")
    return {
        "id": rank,
        "input_chunks": chunks[0],
        "output_chunks": chunks[1],
        "scratch_chunks": chunks[2],
        "channels": [{"channel_type": kind, "connected_to": peers * len(blocks)} for kind in kinds],
        "remote_buffers": [
            {"rank": owner, "type": buffer, "access_channel_types": list(kinds)} for owner, buffer in remotes
        ],
        "threadblocks": [
            {
                "id": number,
                "ops": ops,
                "channels": [
                    {
                        "channel_type": kind,
                        "channel_ids": [number * len(peers) + i for i in range(len(peers))],
                    }
                    for kind in kinds
                ],
                "remote_buffer_refs": [
                    {"access_channel_type": kind, "remote_buffer_ids": list(range(len(remotes)))}
                    for kind in kinds
                ],
            }
            for number, ops in enumerate(blocks)
        ],
        **more,
    }


def plan(collective: str, gpus: list[Any], in_place: bool = True) -> Any:
    """A plan."""
    return {"name": "test", "collective": collective, "protocol": "Simple", "inplace": in_place, "gpus": gpus}


def meet(kind: str = "memory", ids: tuple[int, ...] = (0,)) -> list[_Op]:
    """A signal to peers, and a wait for theirs."""
    return [
        op("nop"),
        op("signal", kind=kind, ids=list(ids)),
        op("wait", kind=kind, ids=list(ids)),
        op("nop"),
    ]


def read_reduce() -> Any:
    """Each of two gpus reduces half of the chunks into both memories."""

    def half(rank: int) -> list[_Op]:
        runs = [("i", 2 * rank, 2), (0, 2 * rank, 2)]
        return [*meet(), op("rres", runs, runs), *meet()]

    return plan(
        "allreduce", [gpu(rank, (4, 4, 0), [1 - rank], [(1 - rank, "i")], [half(rank)]) for rank in range(2)]
    )


def packets() -> Any:
    """Each of two gpus sends the other's half in packets, reduces its own, and sends that in packets; two thread blocks."""

    def blocks(rank: int) -> list[list[_Op]]:
        mine, theirs = rank, 1 - rank
        first = [
            op("ppkt", [("i", theirs, 1)], [(0, 0, 1)]),
            op("respkt", [("i", mine, 1), ("s", 0, 1)], [("i", mine, 1), (0, 1, 1)]),
        ]
        return [first, [op("upkt", [("s", 1, 1)], [("i", theirs, 1)])]]

    return plan(
        "allreduce", [gpu(rank, (2, 2, 2), [1 - rank], [(1 - rank, "s")], blocks(rank)) for rank in range(2)]
    )


def ports() -> Any:
    """Three gpus gather through ports, out of place; the last flush lets a gpu end only when its own chunk has left."""

    def block(rank: int) -> list[_Op]:
        sends = [
            op("pws", [("o", rank, 1)], [(0, rank, 1)], kind="port", ids=[0]),
            op("put", [("o", rank, 1)], [(1, rank, 1)], kind="port", ids=[1]),
        ]
        ends = [
            op("signal", kind="port", ids=[1]),
            op("wait", kind="port", ids=[0, 1]),
            op("flush", kind="port", ids=[0, 1]),
        ]
        return [op("copy", [("i", 0, 1)], [("o", rank, 1)]), op("nop"), *meet(ids=(0, 1)), *sends, *ends]

    def one(rank: int) -> Any:
        peers = [(rank + 1) % 3, (rank + 2) % 3]
        return gpu(rank, (1, 3, 0), peers, [(peer, "o") for peer in peers], [block(rank)])

    return plan("allgather", [one(rank) for rank in range(3)], in_place=False)


def groups() -> Any:
    """Two thread blocks share copies and gets of an alltoall; a barrier stands before the signals, which the first one alone sends."""

    def blocks(rank: int) -> list[list[_Op]]:
        def both(number: int, *runs: Any) -> list[_Op]:
            return [op("copy", runs[0], runs[1], tbg=(number, 2)), op("nop")]

        def block(number: int) -> list[_Op]:
            barrier = op("barrier", barrier_id=0, num_threadblocks=2)
            head = [
                *both(number, [("i", 1 - rank, 1)], [("s", 0, 1)]),
                *both(number, [("i", rank, 1)], [("o", rank, 1)]),
                barrier,
            ]
            get = op("get", [(0, 0, 1)], [("o", 1 - rank, 1)], ids=[0], tbg=(number, 2))
            return [
                *head,
                *(meet() if number == 0 else []),
                barrier,
                get,
                op("nop"),
                barrier,
                *(meet() if number == 0 else []),
            ]

        return [block(0), block(1)]

    return plan(
        "alltoall",
        [gpu(rank, (2, 2, 1), [1 - rank], [(1 - rank, "s")], blocks(rank)) for rank in range(2)],
        in_place=False,
    )


def pipeline() -> Any:
    """A thread block copies units to scratch, a second one exchanges them with the other gpu's, a third one reduces them."""

    def blocks(rank: int) -> list[list[_Op]]:
        def each(*ops: _Op) -> list[_Op]:
            return [{"name": "pipeline", "iter_context": {"unit_size": 2, "num_chunks": 1}, "ops": list(ops)}]

        copy_in = [op("copy", [("i", 0, 1)], [("s", 0, 1)]), op("nop"), op("sem_release", semaphore_ids=[0])]
        exchange = [op("put", [("s", 0, 1)], [(0, 1, 1)]), *meet(), op("sem_release", semaphore_ids=[1])]
        reduce = [
            op("re", [("i", 0, 1), ("s", 1, 1)], [("o", 0, 1)]),
            op("nop"),
            op("sem_release", semaphore_ids=[2]),
        ]
        waits = [[op("sem_acquire", semaphore_ids=[number]), op("nop")] for number in range(3)]
        return [each(*waits[2], *copy_in), each(*waits[0], *exchange), each(*waits[1], *reduce)]

    semaphores = {"semaphores": [{"init_value": n} for n in (0, 0, 2)]}
    gpus = [
        gpu(rank, (1, 1, 2), [1 - rank], [(1 - rank, "s")], blocks(rank), **semaphores) for rank in range(2)
    ]
    return plan("allreduce", gpus, in_place=False)


def own_input() -> Any:
    """A reduce_scatter in place: each of two gpus adds its chunk of the other's input to its own, and then writes the rest of its input."""

    def block(rank: int) -> list[_Op]:
        reduce = op("rre", [("i", rank, 1), (0, rank, 1)], [("o", 0, 1)])
        return [*meet(), reduce, *meet(), op("copy", [("i", rank, 1)], [("i", 1 - rank, 1)])]

    return plan(
        "reducescatter",
        [gpu(rank, (2, 1, 0), [1 - rank], [(1 - rank, "i")], [block(rank)]) for rank in range(2)],
    )


PLANS = {
    "input": own_input,
    "read-reduce": read_reduce,
    "packets": packets,
    "ports": ports,
    "groups": groups,
    "pipeline": pipeline,
}


def old_packets() -> Any:
    """The plan `packets` in the first generation of the format, with one thread block."""

    def one(rank: int) -> Any:
        mine, theirs, ends = rank, 1 - rank, {"o_buff": {"src": "i", "dst": "s"}, "ctype": "sm", "cnt": 1}
        local = {"srcbuff": "i", "srcoff": mine, "dstbuff": "i", "dstoff": mine}
        ops = [
            {"name": "ppkt", **ends, "srcs": [{"buff": "i", "off": theirs}], "o_cids": [{"id": 0, "off": 0}]},
            {
                "name": "rspkt",
                **ends,
                **local,
                "srcs": [{"buff": "s", "off": 0}],
                "o_cids": [{"id": 0, "off": 1}],
            },
            {"name": "nop", "deps": [{"tb": 0, "step": 1}]},
            {
                "name": "cpkt",
                "srcbuff": "s",
                "srcoff": 1,
                "dstbuff": "i",
                "dstoff": theirs,
                "ctype": "none",
                "cnt": 1,
            },
        ]
        channels = [{"srcbuff": "i", "dstbuff": "s", "type": "sm", "connectedTo": [1 - rank]}]
        block = {"id": 0, "ops": ops, "channels": [{"src": "i", "dst": "s", "ctype": "sm", "cids": [0]}]}
        return {
            "id": rank,
            "inputChunks": 2,
            "outputChunks": 0,
            "scratchChunks": 2,
            "channels": channels,
            "threadblocks": [block],
        }

    return {
        "name": "old",
        "colletive": "allreduce",
        "protocol": "LL",
        "inplace": True,
        "gpus": [one(0), one(1)],
    }
