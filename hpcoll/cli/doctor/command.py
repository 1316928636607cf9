"""``hpcoll doctor``: examines MPI library, launcher, hosts, GPUs and network, and says what is wrong and what to change.

MPI starts in a child of each rank, because a library that cannot start ends its process: the report then says so and has the rest.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import hpcoll
from hpcoll.base.children import python
from hpcoll.base.launchers import YIELDS, gives_cores_away
from hpcoll.base.machine import ProcessLocation, location
from hpcoll.base.text import counted
from hpcoll.cli.doctor.findings import FAIL, OK, WARN, Finding, Shared, as_json, as_text, failed, merge, named
from hpcoll.cli.doctor.gpus import (
    DEVICE,
    NO_CUDA,
    check_awareness,
    check_gpus,
    check_ucx,
    cuda_awareness,
)
from hpcoll.cli.doctor.launchers import (
    MPICH,
    OPEN_MPI,
    MpiLibrary,
    cannot_load,
    cannot_start,
    check_launch,
    check_mpiexec,
    find_launcher,
)
from hpcoll.cli.doctor.probes import cpu_quota, examine, installed, one_copy
from hpcoll.cli.options import option
from hpcoll.launch.start import begin_at, fits, initialize
from hpcoll.launch.variables import PROCESS, of_this_process
from hpcoll.runtime.transports.cross_memory import word
from hpcoll.schedules.placement import describe_all, numbered

START_LIMIT_S = 180  # for MPI to start on all ranks and to gather

_ZERO_PAGE = 1 << 12  # handles of the MPI ABI are below it, where no pointer is
_LEVELS = ("single", "funneled", "serialized", "multiple")


class Facts(NamedTuple):
    """Facts of one rank, which rank 0 gathers to judge all together."""

    host: str
    cores: frozenset[int]  # cores it may run on
    quota: float  # cores' worth of time that its control group allows; infinity where there is no limit
    online: int  # cores of its machine
    yields: bool  # Open MPI was told to give the core away while it waits
    library: MpiLibrary
    location: ProcessLocation = ProcessLocation("", "", "")
    gpus: frozenset[str] = frozenset()  # the text of its finding about each GPU that it sees


class DoctorReport(NamedTuple):
    """Findings of the ranks that found each other; empty on all of them but rank 0."""

    nranks: int
    merged: list[Shared]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = "Run it alone, or as you start programs: mpirun -n 4 hpcoll doctor. Exit code 1 means that something does not work."
    option(parser, "--format", "the form of the report", "text", choices=("text", "json"))


def run(arguments: argparse.Namespace) -> int:
    """Examine, print on rank 0, and return 1 there if something does not work.

    Other ranks return 0: a launcher that saw one of them fail might end the job before rank 0 has printed.
    """
    launcher = find_launcher(os.environ)
    rank = launcher.rank if launcher else 0
    mpi = sys.modules.get("mpi4py.MPI")
    runs = mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized()
    report = _with_mpi(examine(rank)) if runs else _in_child(examine(rank))
    # programs of one rank each: the first speaks for all
    if not report.merged or (report.nranks == 1 and rank):
        return 0
    document = as_json(report.merged, report.nranks, hpcoll.__version__)
    print(
        as_text(report.merged) if arguments.format == "text" else json.dumps(document, indent=1) + "\n",
        end="",
    )
    return 1 if failed(report.merged) else 0


def _in_child(local: list[Finding]) -> DoctorReport:
    """Run `_with_mpi` in another process; where that fails, report what is known without it."""
    # the child inherits it, and whatever the launcher handed to this process
    page = os.memfd_create("hpcoll-doctor", 0)
    command = python(f"from hpcoll.cli.doctor.command import child; child({page})")
    environment = {name: value for name, value in os.environ.items() if name != PROCESS}  # it is the rank
    try:
        done = subprocess.run(
            command,
            input=json.dumps(local),
            text=True,
            close_fds=False,
            env=environment,
            timeout=START_LIMIT_S,
            check=False,
        )
        how = f"ended the process with {'signal' if done.returncode < 0 else 'status'} {abs(done.returncode)}"
    except subprocess.TimeoutExpired:
        how = f"did not end within {START_LIMIT_S} s"
    with os.fdopen(page) as written:
        written.seek(0)
        lines = [json.loads(line) for line in written if line.endswith("\n")]
    if len(lines) > 1:
        nranks, rows = lines[1]
        return DoctorReport(
            nranks, [Shared(Finding(*finding), ranks, hosts) for finding, ranks, hosts in rows]
        )
    library = MpiLibrary(*lines[0]) if lines and lines[0] else None
    known = check_library(library) if library else []
    return DoctorReport(
        1, merge([[*known, cannot_start(find_launcher(os.environ), library, how), *local]], [""])
    )


def child(page: int) -> None:
    """Run the other process: write a line with the library to a file descriptor, start MPI, and write a line with the report."""
    local = [Finding(*row) for row in json.load(sys.stdin)]
    with os.fdopen(page, "w", buffering=1) as lines:
        try:
            import mpi4py

            mpi4py.rc.initialize = False
            from mpi4py import MPI
        except Exception as error:  # ImportError, RuntimeError: whatever a broken installation raises
            broken = cannot_load(error, os.environ)
            lines.write(f"null\n{json.dumps(DoctorReport(1, merge([[broken, *local]], [''])))}\n")
            return
        lines.write(json.dumps(loaded_library(MPI)) + "\n")
        # mpi4py's, about a launcher that does not fit: the report says more
        warnings.simplefilter("ignore", RuntimeWarning)
        place = of_this_process()
        if place and fits(MPI):
            begin_at(place, START_LIMIT_S / 2)
        else:
            initialize(MPI)
        try:
            lines.write(json.dumps(_with_mpi(local)) + "\n")
        except Exception:  # the others may wait for this rank
            traceback.print_exc()
            sys.stderr.flush()
            MPI.COMM_WORLD.Abort(1)
        MPI.Finalize()


def _with_mpi(local: list[Finding]) -> DoctorReport:
    """Return the whole report, from the findings that each rank has made without MPI; collective, on a running MPI."""
    from mpi4py import MPI

    from hpcoll.selection.processes import bound_to
    from hpcoll.selection.topology import domains_of

    world, library, launcher = MPI.COMM_WORLD, loaded_library(MPI), find_launcher(os.environ)
    gpus = any(finding.subject == "CUDA" and finding.found != NO_CUDA for finding in local)
    says = cuda_awareness(str(MPI.__file__))
    aware = [
        check_awareness(says, os.environ.get("HPCOLL_CUDA_PATH", ""), gpus),
        *(check_ucx() if gpus else ()),
    ]
    mine = [*check_library(library), check_threads(MPI), check_failures(MPI), *aware]
    mine.append(check_launch(launcher, world.size, library, os.environ))
    if launcher is None:
        mine += check_mpiexec(library)
    yields = gives_cores_away(os.environ)
    cores, seen = (
        frozenset(os.sched_getaffinity(0)),
        frozenset(finding.found for finding in local if finding.subject == DEVICE),
    )
    facts = Facts(
        MPI.Get_processor_name(), cores, cpu_quota(), os.cpu_count() or 1, yields, library, location(), seen
    )
    words = [said for host, said in world.allgather((facts.host, word())) if host == facts.host]
    gathered, domains = world.gather((facts, [*mine, *one_copy(words)], local)), world.gather(bound_to(cores))
    merged: list[Shared] = []
    if gathered is not None:
        everyone = [rank for rank, _, _ in gathered]
        hosts = [rank.host for rank in everyone]
        shared = check_gpus([rank.location for rank in everyone], [rank.gpus for rank in everyone])
        judged = [[*a, *b, *c] for a, b, c in zip(check_libraries(everyone), check_hosts(everyone), shared)]
        nodes = numbered(hosts)
        placed = [[Finding(OK, "placement", describe_all(nodes, domains_of(nodes, domains or ())))]] * len(
            hosts
        )
        for part in (
            [theirs for _, theirs, _ in gathered],
            placed,
            judged,
            [theirs for _, _, theirs in gathered],
        ):
            merged += merge(part, hosts)
    return DoctorReport(world.size, merged)


def loaded_library(mpi: ModuleType) -> MpiLibrary:
    """Return the MPI library that mpi4py has loaded; MPI need not have started."""
    from hpcoll.runtime.transports.mpi import library

    vendor, release = mpi.get_vendor()
    release, standard = (".".join(map(str, numbers)) for numbers in (release, mpi.Get_version()))
    file, nbytes, is_standard = (
        _file_of(library().isend),
        library().request_nbytes,
        0 < library().byte < _ZERO_PAGE,
    )
    return MpiLibrary(vendor, release, file, standard, nbytes, installed("mpi4py"), is_standard)


def _file_of(address: int) -> str:
    """Return the shared library that holds an address, by the dynamic linker; the empty string when it does not know."""
    info = (ctypes.c_char_p * 4)()  # Dl_info: file name, base address, symbol name, its address
    try:
        found = ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), info)
    except (OSError, AttributeError):
        return ""
    return os.fsdecode(info[0]) if found and info[0] else ""


def check_library(library: MpiLibrary) -> list[Finding]:
    """Report the library, and whether hpcoll's compiled code knows its handles."""
    text = f"{library.name} {library.version}, {library.path or 'in an unknown file'}, MPI {library.standard}, mpi4py {library.mpi4py}"
    abi, known = (
        ("the MPI ABI", 8)
        if library.standard_abi
        else (f"{library.family}'s ABI", {OPEN_MPI: 8, MPICH: 4}.get(library.family))
    )
    if known == library.handle_nbytes:
        return [Finding(OK, "MPI library", f"{text}, {abi} (handles of {known} bytes)")]
    what = "see whether 'hpcoll bench' reports right answers; Open MPI and libraries with MPICH's ABI or the MPI ABI are known to work"
    return [
        Finding(
            WARN,
            "MPI library",
            f"{text}, handles of {library.handle_nbytes} bytes: hpcoll does not know its ABI",
            what,
        )
    ]


def check_threads(mpi: ModuleType) -> Finding:
    """Report the thread level that was asked for and the one that was provided."""
    import mpi4py

    levels = {getattr(mpi, f"THREAD_{name.upper()}"): name for name in _LEVELS}
    asked = mpi4py.rc.thread_level if mpi4py.rc.threads else "single"
    given = levels.get(mpi.Query_thread(), "an unknown one")
    text = f"{asked} asked, {given} provided"
    if given == "multiple":
        return Finding(OK, "threads", text)
    means = "threads may not call MPI at once, and non-blocking collectives between hosts progress only inside Test and Wait"
    how = (
        "set mpi4py.rc.thread_level or MPI4PY_RC_THREAD_LEVEL to multiple"
        if asked != "multiple"
        else "load a library built for it"
    )
    return Finding(WARN, "threads", text, f"{means}: {how}")


def check_failures(mpi: ModuleType) -> Finding:
    """Report what the MPI library can do once a rank has failed."""
    from hpcoll.runtime.transports.mpi import knows_failures

    if knows_failures():
        return Finding(OK, "failures of ranks", "the others may go on, by comm.shrink()")
    vendor, release = mpi.get_vendor()
    # mpi4py's wheel has the codes for 4.1, too
    has = mpi.ERR_PROC_FAILED != mpi.ERR_REVOKED and vendor == OPEN_MPI and release >= (5,)
    why = (
        "not started by mpirun --with-ft ulfm" if has else "the library has nothing for it, Open MPI 5 would"
    )
    return Finding(OK, "failures of ranks", f"they end the job, and comm.shrink() is refused: {why}")


def check_libraries(facts: Sequence[Facts]) -> list[list[Finding]]:
    """Return for each rank a finding when the ranks have loaded different MPI libraries."""
    names = {f"{fact.library.name} {fact.library.version}" for fact in facts}
    if len(names) == 1:
        return [[] for _ in facts]
    what = "install one MPI library on all hosts, and see MPI4PY_LIBMPI and the loaded modules of each"
    return [
        [
            Finding(
                FAIL,
                "MPI libraries",
                f"{fact.library.name} {fact.library.version}, others have another",
                what,
            )
        ]
        for fact in facts
    ]


def check_hosts(facts: Sequence[Facts]) -> list[list[Finding]]:
    """Return findings for each rank: the hosts, and whether the ranks of its host have enough cores, and cores of their own."""
    ranks_of: dict[str, list[int]] = {}
    for rank, fact in enumerate(facts):
        ranks_of.setdefault(fact.host, []).append(rank)
    findings: list[list[Finding]] = [[] for _ in facts]
    texts = []
    for host, ranks in ranks_of.items():
        theirs = [facts[rank] for rank in ranks]
        cores = min(
            len(frozenset().union(*(fact.cores for fact in theirs))), *(fact.quota for fact in theirs)
        )
        texts.append(f"{host} ({counted(len(ranks), 'rank')} on {counted(cores, 'core')})")
        for rank in ranks:
            findings[rank] = _check_cores(facts[rank], theirs, cores)
    summary = Finding(OK, "hosts", f"{counted(len(texts), 'host')}: {named(texts)}")
    return [[summary, *more] for more in findings]


def _check_cores(fact: Facts, theirs: Sequence[Facts], cores: float) -> list[Finding]:
    """Return findings about one rank among the ranks of its host, which together have so many cores."""
    alike = sum(other.cores == fact.cores for other in theirs)
    if len(fact.cores) == 1 < min(alike, fact.online):
        what = "a core each: mpirun --bind-to core (Open MPI), mpiexec -bind-to core (MPICH), srun --cpu-bind=cores; or --bind-to none"
        return [
            Finding(
                FAIL,
                "binding",
                f"{alike} ranks of a host are bound to its core {min(fact.cores)} and no other",
                what,
            )
        ]
    if len(theirs) <= cores:
        return []
    text = f"{counted(len(theirs), 'rank')} of a host share {counted(cores, 'core')}"
    what = f"start at most {counted(max(1, int(cores)), 'rank')} per host, or expect waiting ranks to take time from working ones"
    if fact.library.family == OPEN_MPI and not fact.yields:
        return [Finding(WARN, "cores", text, f"{what}; {YIELDS}=1 makes them give their core away")]
    return [Finding(WARN, "cores", text, what)]
