"""The key-value store of ranks under MPI: what it keeps, who may ask, and that a wait for what never comes ends."""

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import chain

import pytest
import torch.distributed as dist
from mpi4py import MPI
from operations import NRANKS, RANK

from hpcoll.base.authenticated import LOOPBACK
from hpcoll.base.errors import TransportError
from hpcoll.base.key_value_server import Server
from hpcoll.torch import rendezvous
from hpcoll.torch.rendezvous import Store

LIMIT = timedelta(seconds=20)
FAR = "255.255.255.255"  # of no host


@pytest.fixture
def shared() -> Iterator[dist.Store]:
    """One of all ranks, as torch hands it out: by way of C++, with a prefix."""
    kept = rendezvous._latest[:]
    yield dist.PrefixStore("some", rendezvous.store(MPI.COMM_WORLD, LIMIT))
    MPI.COMM_WORLD.Barrier()
    rendezvous._latest[:] = kept


def test_values_reach_all_ranks(shared: dist.Store) -> None:
    shared.set(f"from {RANK}", f"{RANK} says")
    assert [shared.get(f"from {rank}") for rank in range(NRANKS)] == [
        f"{rank} says".encode() for rank in range(NRANKS)
    ]
    shared.multi_set([f"a{RANK}", f"b{RANK}"], ["1", "2"])
    assert (
        shared.multi_get([f"{letter}{rank}" for rank in range(NRANKS) for letter in "ab"])
        == [b"1", b"2"] * NRANKS
    )


def test_numbers_add_up(shared: dist.Store) -> None:
    """Of all ranks and threads at once, each add sees a sum of its own."""
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(shared.add("sum", 1))) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    every = MPI.COMM_WORLD.allgather(found)
    assert sorted(chain.from_iterable(every)) == list(range(1, 8 * NRANKS + 1))
    assert shared.get("sum") == str(8 * NRANKS).encode()


def test_one_wins(shared: dist.Store) -> None:
    """Where all set a key that nobody has, one value stays, and all are told it."""
    told = shared.compare_set("first", "", f"rank {RANK}")
    assert set(MPI.COMM_WORLD.allgather(told)) == {shared.get("first")}
    assert shared.compare_set("first", "not that", "other") == told


def test_kept_and_removed() -> None:
    server = Server()
    # as long as it is used: torch holds on to its C++ half alone
    ours = Store(server.address, server.key, LIMIT)
    store = dist.PrefixStore("mine", ours)
    store.append("text", "ab")
    store.append("text", "cd")
    assert (store.get("text"), store.num_keys(), store.check(["text"]), store.check(["text", "none"])) == (
        b"abcd",
        1,
        True,
        False,
    )
    assert (store.delete_key("text"), store.delete_key("text"), store.num_keys()) == (True, False, 0)
    assert store.clone().add("n", 2) == 2
    with pytest.raises(
        dist.DistStoreError, match=r"wait timeout after [0-9]{2,3} ms, keys: mine/n, mine/never"
    ):
        store.wait(["n", "never"], timedelta(milliseconds=50))
    store.set_timeout(timedelta(milliseconds=50))
    with pytest.raises(dist.DistStoreError, match="wait timeout"):
        store.get("never")


def test_only_who_has_the_key() -> None:
    server = Server()
    with pytest.raises(dist.DistStoreError, match="does not answer: it has another key"):
        Store(server.address, b"another", LIMIT)
    assert Store(server.address, server.key, LIMIT).add("n", 1) == 1


def test_goes_with_rank_0() -> None:
    """Who asks a server that is gone is told, soon."""
    server = Server()
    store = Store(server.address, server.key, LIMIT)
    del server
    with pytest.raises(dist.DistStoreError, match="does not answer"):
        ask_often(store)


@pytest.mark.mpi(min_size=2)
def test_ranks_meet_where_all_of_them_get(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses that rank 0 does not have, or a rank does not get to, are passed over; where no other is left all ranks are told."""

    def far_store(address: tuple[str, int], *others: object) -> Store:
        return Store((FAR, 1) if address[0] == "127.0.0.2" else address, *others)

    if RANK == NRANKS - 1:
        monkeypatch.setattr(rendezvous, "Store", far_store)
    hosts = [FAR, "127.0.0.2"]
    monkeypatch.setattr(rendezvous, "_candidates", lambda world: hosts)
    monkeypatch.setattr(rendezvous, "_latest", [])
    with pytest.raises(
        TransportError, match=f"rank 0: .*{FAR}.*; rank {NRANKS - 1}: .* does not answer.*MASTER_ADDR"
    ):
        rendezvous.store(MPI.COMM_WORLD, LIMIT)
    hosts.append(LOOPBACK)
    assert rendezvous.store(MPI.COMM_WORLD, LIMIT)._address[0] == LOOPBACK
    MPI.COMM_WORLD.Barrier()


def ask_often(store: dist.Store) -> None:
    """Until that fails, ten seconds at most."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        store.set("a", "b")
        time.sleep(0.01)
