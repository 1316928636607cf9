"""Formats of input that others may have written: for each one samples, and a function that reads as programs and commands do.

A format more is a line in `FORMATS`.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from flight_cases import call, world
from fuzz_mutators import JSON, VARIABLES, XML, Form
from msccl_files import pairs_allreduce, ring_allgather, ring_allreduce
from mscclpp_files import PLANS, old_packets

from hpcoll.base.errors import HpcollError
from hpcoll.base.launchers import LAUNCHERS, gives_cores_away, local_nranks, local_rank
from hpcoll.base.text import MAX_RANKS
from hpcoll.cli import ERROR, line_of, main
from hpcoll.cli.inspect.live import document, lines
from hpcoll.cli.inspect.ranks_here import look
from hpcoll.runtime.telemetry.status_page import Identity, StatusPage, put, room

HERE = Path(__file__).parent / "samples"  # files that hpcoll wrote
DRAWN = 25  # of so many results of the benchmark one is drawn, for that takes half a second; the others are only read
_WHO_NBYTES = 4 << 10


class Format(NamedTuple):
    """A format of input.

    Attributes:
        samples: Inputs that are right; each is one or several files, of which one is changed.
        reads: Reads such files and prints what it says; its exit code. The number counts calls.
        form: What the text of a file is.
    """

    samples: Callable[[], list[list[bytes]]]
    reads: Callable[[Sequence[Path], int], int]
    form: Form = JSON


def _stored(*names: str) -> list[bytes]:
    return [(HERE / name).read_bytes() for name in names]


def _flights() -> list[list[bytes]]:
    late = world([call(1), call(2)], [call(1, late=0.1), call(2)], [call(1), call(2, late=0.2)])
    stuck = world(
        [call(1, "waiting", awaits=[1, 2])],
        [call(1, "failed", awaits=[0])],
        [call(1, "waiting", op="MAX", awaits=[1])],
    )
    made = [[json.dumps(record).encode() for record in records] for records in (late, late[:2], stuck)]
    stored = [("rank0.json", "rank1.json", "rank2.json"), ("rank0.json", "rank2.json"), ("rank1.json",)]
    return [*(_stored(*names) for names in stored), *made]


def _inspect(files: Sequence[Path], turn: int) -> int:
    return main(["inspect", *["--json"][: turn % 2], *map(str, files)])


def _tuning(files: Sequence[Path], turn: int) -> int:
    """As a communicator reads its table: what fits it, and which algorithms it then picks."""
    from hpcoll.analysis.cost import HOSTS
    from hpcoll.selection import tuning
    from hpcoll.selection.choose import Need, choose
    from hpcoll.selection.config import Config, log

    try:
        (section, *_) = tuning.read(HERE / "tuning.json").sections
        found = tuning.read(files[0])
        (table, misfit), (constants, other) = (
            tuning.fit(found, section.site),
            tuning.fit_levels(found, section.site),
        )
        if misfit or other:
            log.warning("%s %s", misfit, other)
        levels = HOSTS._replace(**{level: one.network for level, one in constants.items()})
        for nbytes in (0, 8, 1 << 20, 2**62):
            for one_node in (True, False):
                picked = choose(
                    Need("bcast", 2, nbytes, one_node=one_node, nodes=(0, 1), levels=levels),
                    Config(table=table),
                )
                print(picked)
        tuning.as_text(found)
    except HpcollError as error:
        return _refused(error)
    return 0


def _simulate(files: Sequence[Path], turn: int) -> int:
    sizes = "--nranks 4 --ranks-per-node 2 --bytes 8,1M".split()
    return main(
        ["simulate", "allreduce", "--algorithms", "ring,tree,hierarchical", *sizes, "--tuning", str(files[0])]
    )


def _bench(files: Sequence[Path], turn: int) -> int:
    from hpcoll.cli.bench.earlier import read_run

    if turn % DRAWN == 0:
        return main(
            [
                "bench",
                "--plot",
                str(files[0].with_suffix(".svg")),
                *(word for file in files for word in ("--from", str(file))),
            ]
        )
    try:
        for file in files:
            print(read_run(file).facts)
    except HpcollError as error:
        return _refused(error)
    return 0


def _environments() -> list[list[bytes]]:
    ours = {
        "HPCOLL_ALLREDUCE": "ring",
        "HPCOLL_SEGMENT": "64K",
        "HPCOLL_TUNING": "table.json",
        "HPCOLL_SHM": "1G",
        "HPCOLL_SHM_RANKS": "4",
        "HPCOLL_SHM_COPY": "staged",
        "HPCOLL_DOMAINS": "3+1+4",
        "HPCOLL_CUDA_PATH": "host",
        "HPCOLL_CHECK": "all",
        "HPCOLL_WARN": "10m",
        "HPCOLL_TIMEOUT": "500ms",
        "HPCOLL_RECORD": "records",
        "HPCOLL_CACHE": "cache",
        "HPCOLL_DEBUG": "info",
        "HPCOLL_NONSENSE": "1",
    }
    theirs = {name: "2" for one in LAUNCHERS for name in (one.rank, one.nranks, one.local_rank) if name}
    more = {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "SLURM_NTASKS": "4",
        "MPI_LOCALNRANKS": "2",
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }
    return [[VARIABLES.dump(ours)], [VARIABLES.dump(theirs | more)], [VARIABLES.dump(ours | theirs | more)]]


def _environment(files: Sequence[Path], turn: int) -> int:
    """As communicators, launch checks and ``hpcoll doctor`` read it."""
    from hpcoll.cli.doctor.findings import as_text, merge
    from hpcoll.cli.doctor.gpus import judge
    from hpcoll.cli.doctor.launchers import find_launcher
    from hpcoll.cli.doctor.probes import settings, tuning_file
    from hpcoll.selection.config import log, meant_variable, read_config
    from hpcoll.selection.topology import dealt

    environment = VARIABLES.load(files[0].read_bytes())
    launcher, told = find_launcher(environment), [local_nranks(environment), local_rank(environment)]
    assert all(
        number is None or 0 <= number <= MAX_RANKS for number in [*told, *(launcher[-2:] if launcher else ())]
    )
    gives_cores_away(environment)
    found = [*settings(environment), *tuning_file(environment), *judge({"error": ""}, True, {}, environment)]
    print(as_text(merge([found], ["host"])))
    try:
        config = read_config(environment)
        for name in config.unknown:
            log.warning("environment variable %s means nothing%s", name, meant_variable(name))
        dealt((0,) * 100, config.domains or (1,))
        print(repr(config.agreement())[:0])
    except HpcollError as error:
        return _refused(error)
    return 0


def _pages() -> list[list[bytes]]:
    wait = {
        "key": "0.0.7",
        "lane": 0,
        "number": 41,
        "what": "Barrier() at train.py:9",
        "on": "MPI_COMM_WORLD",
        "step": "row 1 of 3",
        "since": 1.5,
        "for": [1],
        "awaits": [1],
        "sees": {"1": [5000.0, "is in no collective since 12:03:07, after call 40"]},
    }
    who = [1, 0, 0, 2, "one", "node1", 50.0, "0:1 1:2", "train.py", "--x"]
    notice = {"waits": [wait], "failed": [wait | {"kind": "PeerFailed"}], "left": ""}
    return [
        [json.dumps({"who": who, "notice": notice}).encode()],
        [json.dumps({"who": who, "notice": {"left": "has ended"}}).encode()],
    ]


def _page(files: Sequence[Path], turn: int) -> int:
    """A page of this process, as another one that looks finds it."""
    content = files[0].read_bytes()
    try:
        tree = json.loads(content)
        who = [str(word) for word in tree["who"]]
        text, notice = (
            "\0".join([who[0], str(os.getpid()), *who[2:]]).encode(errors="replace"),
            json.dumps(tree["notice"]).encode(),
        )
    except (ValueError, RecursionError, LookupError, TypeError):
        text, notice = Identity(os.getpid(), 0, 2, "one", "node1", 50.0, {0: 1}, ["train.py"]).text, content
    page, folder = StatusPage(), files[0].parent / "proc"
    try:
        put(page._memory[:_WHO_NBYTES], text[: room(_WHO_NBYTES)])
        put(page._memory[_WHO_NBYTES:], notice[: room(len(page._memory) - _WHO_NBYTES)])
        folder.mkdir(exist_ok=True)
        own = folder / str(os.getpid())
        if not own.is_symlink():
            own.symlink_to(f"/proc/{os.getpid()}")
        found = look(folder)
        assert len(found.jobs) + len(found.unclear) == 1
        print("\n".join([*lines(found, {}, 1000.0), *found.unclear]))
        json.dumps(document(found, {}))
    finally:
        page.close()
    return 0


def _schedules() -> list[list[bytes]]:
    return [[write(3).text().encode()] for write in (ring_allreduce, pairs_allreduce, ring_allgather)]


def _plans() -> list[list[bytes]]:
    return [[json.dumps(write()).encode()] for write in (PLANS["groups"], PLANS["ports"], old_packets)]


def _conditions() -> list[list[bytes]]:
    """Of a ring of three gpus: a collective by name, and by what each chunk holds."""
    names = ["a", 2, "c"]
    wanted = [{"item": "a", "gpus": [0, 1, 2]}, 2, "c"]
    custom = {
        "inputs": [names] * 3,
        "outputs": [wanted, [None, *wanted[1:]], wanted],
        "shifts": [0, 0, 0],
        "in_place": False,
    }
    return [[json.dumps(one).encode()] for one in ({"collective": "allreduce", "root": 0}, custom)]


def _judge(files: Sequence[Path], turn: int) -> int:
    """Beside the program for which they are."""
    program = files[0].with_suffix(".xml")
    program.write_text(ring_allreduce(3).text())
    return main(f"verify {program} --conditions {files[0]}".split())


def _prove(files: Sequence[Path], turn: int) -> int:
    return main(["verify", *["--advice"][: turn % 2], str(files[0])])


def _verify(files: Sequence[Path], turn: int) -> int:
    return _prove([files[0].rename(files[0].with_suffix(".xml"))], turn)


def _topologies() -> list[list[bytes]]:
    ports = [{"links": [[0, 1], [0, 2]], "bandwidth": 1}]
    ring = {"nranks": 3, "links": [[0, 1, 2], [1, 2, 1], [2, 0, 1]], "both_ways": True}
    return [[json.dumps(one).encode()] for one in (ring, ring | {"groups": ports})]


def _topology(files: Sequence[Path], turn: int) -> int:
    """As the search begins: the links, what is asked for, and what bounds say."""
    from hpcoll.synthesis.hops import SERVED, Task
    from hpcoll.synthesis.search import bounds
    from hpcoll.synthesis.topologies import topology

    try:
        fabric = topology(str(files[0]))
        print(fabric.name, bounds(Task(SERVED[turn % len(SERVED)], fabric.nranks, 0, 1 + turn % 3), fabric))
    except HpcollError as error:
        return _refused(error)
    return 0


def _refused(error: HpcollError) -> int:
    print(line_of(error), file=sys.stderr)
    return ERROR


FORMATS: dict[str, Format] = {
    "flight records": Format(_flights, _inspect),
    "tuning tables": Format(lambda: [_stored("tuning.json")], _tuning),
    "benchmark results": Format(lambda: [_stored("bench.json"), _stored("bench.json", "bench.json")], _bench),
    "files of simulate": Format(lambda: [_stored("tuning.json")], _simulate),
    "environments": Format(_environments, _environment, VARIABLES),
    "status pages": Format(_pages, _page),
    "MSCCL XML": Format(_schedules, _verify, XML),
    "MSCCL++ plans": Format(_plans, _prove),
    "conditions": Format(_conditions, _judge),
    "topologies": Format(_topologies, _topology),
}


def files_of(sample: Sequence[bytes], folder: Path) -> list[Path]:
    """A sample in files."""
    files = [folder / f"{i}.json" for i in range(len(sample))]
    for file, text in zip(files, sample, strict=True):
        file.write_bytes(text)
    return files
