"""``hpcoll tune --model`` under mpirun: the constants that it fits, where it keeps them, and what communicators make of them."""

import logging
import re
from pathlib import Path

import pytest
from mpi4py import MPI
from tuned import patiently, table_in, tune

import hpcoll
from hpcoll.analysis.cost import HOSTS, NEVER, ONE_HOST, Levels, Network
from hpcoll.cli.tune.exchange import READ_SIZES
from hpcoll.comm.context.attach import context_of
from hpcoll.runtime.transports.cross_memory import SLOW_NBYTES, refusal
from hpcoll.selection import tuning
from hpcoll.selection.measured import site
from hpcoll.selection.tuning import FORMAT, NETWORK, NODE, Constants, Document, Site

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.once]
WORLD = MPI.COMM_WORLD
NAMES = WORLD.allgather(MPI.Get_processor_name())
HERE = site(NAMES)
GUESSED = HOSTS if len(set(NAMES)) > 1 else ONE_HOST
SLOW = Network(1e-3, 1e-6, 1e-10, 2e-4, 4096, 1e-3, 1 << 20, 2.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return table_in(tmp_path)


def levels_with(monkeypatch: pytest.MonkeyPatch, file: Path, comm: MPI.Intracomm = WORLD) -> Levels | None:
    """Return what a new communicator is told, the same on all its ranks."""
    monkeypatch.setenv("HPCOLL_TUNING", str(file))
    new = hpcoll.Communicator(comm.Dup())
    found = context_of(new).resources.config.levels
    assert new.allgather(found) == [found] * new.size
    new.Free()
    return found


def written(file: Path, document: Document) -> None:
    if WORLD.rank == 0:
        tuning.write(file, document)
    WORLD.Barrier()


def expected_levels(shm_ranks: int) -> set[str]:
    """Return what there is to measure on a host where so many ranks share memory."""
    return {level for level, there in ((NODE, shm_ranks > 1), (NETWORK, shm_ranks < WORLD.size)) if there}


@pytest.mark.skipif(len(set(NAMES)) > 1, reason="which ranks share memory is set for one host")
@pytest.mark.parametrize(
    "shm_ranks", [*sorted({1, WORLD.size}), *[pytest.param(2, marks=pytest.mark.full)] * (WORLD.size > 2)]
)
def test_constants_are_fitted_to_the_levels_that_there_are(
    shm_ranks: int, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HPCOLL_SHM_RANKS", str(shm_ranks))

    def fitted(seconds: int) -> bool:
        capsys.readouterr()
        code = tune("--model", "--seconds", seconds, "--output", file)
        assert code in (0, 2)  # 2: nothing was measured
        return code == 0 and {one.level for one in tuning.read(file).constants} == expected_levels(shm_ranks)

    patiently(fitted)
    document = tuning.read(file)
    found = {one.level: one.network for one in document.constants}
    assert document.sections == ()
    assert {one.site for one in document.constants} == {HERE}
    for network in found.values():
        assert 1e-8 < network.alpha < 0.1
        assert 0 <= network.overhead <= network.alpha
        assert 1e-12 < network.beta < 1e-7
        assert 1e-13 < network.gamma < 1e-8
        assert network.spill >= 1
    assert [one.read_from in (NEVER, *READ_SIZES) for level, one in found.items() if level == NODE] == [
        True
    ] * (NODE in found)
    out, _ = capsys.readouterr()
    if WORLD.rank == 0:
        assert re.match(r"level +ranks +alpha us +overhead us +GB/s ", out)
        assert [line.split()[0] for line in out.splitlines()[1 : 1 + len(found)]] == list(found)
        assert out.endswith(f"Written to {file}; use it with HPCOLL_TUNING={file}\n")
    assert levels_with(monkeypatch, file) == GUESSED._replace(**found)
    assert levels_with(monkeypatch, file, MPI.COMM_SELF) is None


@pytest.mark.parametrize(("read_from", "usually"), [(None, NEVER), (NEVER, NEVER), (1 << 16, 1 << 16)])
def test_from_which_length_on_messages_are_read_in_their_senders_memory(
    read_from: int | None, usually: int, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured on a node counts for the communicators that use the file."""
    written(file, Document(FORMAT, "1.2.3", (), (Constants(HERE, NODE, SLOW._replace(read_from=read_from)),)))
    monkeypatch.setenv("HPCOLL_TUNING", str(file))
    new = hpcoll.Communicator(WORLD.Dup())
    node = context_of(new).resources.node
    if node.nranks > 1 and not any(
        map(refusal, [one.word for one in context_of(new).resources.team.processes])
    ):
        assert node.own_memory is not None
        assert node.own_memory.usually == usually
        assert node.own_memory.slow == (SLOW_NBYTES if read_from is None else usually)
    new.Free()


ELSEWHERE = Site(HERE.mpi, 100, (("far", 50), ("further", 50)) if len(set(NAMES)) > 1 else (("far", 100),))


def test_constants_of_elsewhere_count_and_the_log_says_so(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written(file, Document(FORMAT, "", (), (Constants(ELSEWHERE, NETWORK, SLOW),)))
    with caplog.at_level(logging.INFO, "hpcoll"):
        assert levels_with(monkeypatch, file) == GUESSED._replace(network=SLOW)
    hosts = ", ".join(host for host, _ in ELSEWHERE.hosts)
    text = f"tuning file {file}: constants of level network were measured with 100 ranks on {hosts}"
    assert [record.getMessage() == text for record in caplog.records].count(True) == (WORLD.rank == 0)
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


def test_constants_of_another_library_are_refused_by_name(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written(file, Document(FORMAT, "", (), (Constants(HERE._replace(mpi="Another MPI 7"), NODE, SLOW),)))
    assert levels_with(monkeypatch, file) is None
    texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(texts) == (WORLD.rank == 0)
    assert all(
        f"tuning file {file} does not fit this communicator: field mpi has Another MPI 7, this run has "
        in text
        for text in texts
    )
