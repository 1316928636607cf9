"""The key-value store of ranks under MPI: what it keeps, who may ask, and that a wait for what never comes ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import chain
from multiprocessing import AuthenticationError

import pytest
import torch.distributed as dist
from mpi4py import MPI
from operations import NRANKS, RANK

from hpcoll.torch import rendezvous
from hpcoll.torch.store import Server, Store

LIMIT = timedelta(seconds=20)


@pytest.fixture
def shared() -> Iterator[dist.Store]:
    """One of all ranks, as torch hands it out: by way of C++, with a prefix."""
    kept = rendezvous._latest[:]
    yield dist.PrefixStore("some", rendezvous.store(MPI.COMM_WORLD, LIMIT))
    MPI.COMM_WORLD.Barrier()
    rendezvous._latest[:] = kept


def test_values_reach_all_ranks(shared: dist.Store) -> None:
    shared.set(f"from {RANK}", f"{RANK} says")
    assert [shared.get(f"from {rank}") for rank in range(NRANKS)] == [f"{rank} says".encode() for rank in range(NRANKS)]
    shared.multi_set([f"a{RANK}", f"b{RANK}"], ["1", "2"])
    assert shared.multi_get([f"{letter}{rank}" for rank in range(NRANKS) for letter in "ab"]) == [b"1", b"2"] * NRANKS


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
    ours = Store(("127.0.0.1", server.port), server.key, LIMIT)  # as long as it is used: torch holds on to its C++ half alone
    store = dist.PrefixStore("mine", ours)
    store.append("text", "ab")
    store.append("text", "cd")
    assert (store.get("text"), store.num_keys(), store.check(["text"]), store.check(["text", "none"])) == (b"abcd", 1, True, False)
    assert (store.delete_key("text"), store.delete_key("text"), store.num_keys()) == (True, False, 0)
    assert store.clone().add("n", 2) == 2
    with pytest.raises(dist.DistStoreError, match=r"wait timeout after [0-9]{2,3} ms, keys: mine/n, mine/never"):
        store.wait(["n", "never"], timedelta(milliseconds=50))
    store.set_timeout(timedelta(milliseconds=50))
    with pytest.raises(dist.DistStoreError, match="wait timeout"):
        store.get("never")


def test_only_who_has_the_key() -> None:
    """Who has another key is refused; who connects and says nothing is in nobody's way."""
    server = Server()
    with socket.create_connection(("127.0.0.1", server.port)):
        with pytest.raises(AuthenticationError):
            Store(("127.0.0.1", server.port), b"another", LIMIT)
        assert Store(("127.0.0.1", server.port), server.key, LIMIT).add("n", 1) == 1


def test_goes_with_rank_0() -> None:
    """Who asks a server that is gone is told, soon."""
    server = Server()
    address, key = ("127.0.0.1", server.port), server.key
    store = Store(address, key, LIMIT)
    del server
    with pytest.raises(dist.DistStoreError, match="does not answer"):
        ask_often(store)


def ask_often(store: dist.Store) -> None:
    """Until that fails, ten seconds at most."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        store.set("a", "b")
        time.sleep(0.01)
