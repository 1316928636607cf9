"""`run`: a function on several ranks, from a script, a test or a notebook."""

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from hpcoll.base import children
from hpcoll.base.errors import ArgumentError, PeerFailed, TransportError
from hpcoll.base.key_value_server import Server, Table
from hpcoll.base.text import parse_seconds, ranks_in_words
from hpcoll.launch.child import ADDRESS, OUTCOME, TASK, Outcome, dumped, has_cloudpickle
from hpcoll.launch.ranks import Ranks

_LOOK_S = 0.05
_OTHERS_S = 0.5  # patience with what the other ranks say of an error
_CHILD = "from hpcoll.launch.child import main\nmain()"


class RankTraceback(Exception):
    """The traceback of a rank's error, as text; the cause of the error that `run` raises."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._text = text

    def __str__(self) -> str:
        return f"\n{self._text}"


def run(
    function: Callable[..., Any],
    nranks: int,
    *arguments: Any,
    prefix: bool = False,
    timeout: float | str | None = None,
) -> list[Any]:
    """Return what a function returns on each rank, in rank order; the ranks are new processes of this host.

    In the function, ``MPI.COMM_WORLD`` is their world. With cloudpickle installed, functions of a notebook or script travel as they are.
    Without it, the function must be one of a module, and a script calls `run` below ``if __name__ == "__main__":``.

    Args:
        function: Called on each rank as ``function(*arguments)``.
        nranks: Number of ranks, at least 1; it may be larger than the number of cores.
        arguments: The function's arguments, pickled once and the same for all ranks.
        prefix: Each line that a rank prints begins with its rank.
        timeout: Seconds that all of it may take; None: as long as it takes.

    Raises:
        ArgumentError: A wrong number of ranks, or something that cannot be pickled.
        PeerFailed: A rank's process has ended without a result.
        TransportError: The ranks have not ended in time.
        Exception: The error of the rank that raised first, with its traceback, and what the others say of it where they have
            the time: Open MPI's mpirun ends them at once. All ranks are ended.
    """
    if not isinstance(nranks, int) or nranks < 1:
        raise ArgumentError(f"nranks must be a number of ranks, at least 1, got {nranks!r}")
    if ADDRESS in os.environ:
        raise ArgumentError(
            "a rank imports this program, which calls hpcoll.run: call it below if __name__ == '__main__'"
        )
    limit_s = float("inf") if timeout is None else parse_seconds(timeout)
    server = Server()
    server.table.set(TASK, _task(function, arguments))
    host, port = server.address
    environment = {ADDRESS: f"{host} {port} {server.key.hex()}"}
    ranks = Ranks(children.python(_CHILD), nranks, environment, prefix=prefix, stdin=subprocess.DEVNULL)
    outcomes = _Outcomes(server.table, nranks)
    try:
        end = time.monotonic() + limit_s
        while not outcomes.all_within(_LOOK_S) or not ranks.ended():
            _check(outcomes, ranks)
            if time.monotonic() > end:
                raise TransportError(f"{ranks_in_words(outcomes.missing())} did not end within {limit_s:g} s")
        _check(outcomes, ranks)
        return [outcomes.found[rank].value for rank in range(nranks)]
    finally:
        ranks.end()


def _task(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    """Return the pickle of what ranks are to do, and of what they need to know before."""
    try:
        content = dumped((function, arguments))
    except Exception as error:
        raise ArgumentError(f"function and arguments must be picklable: {error}") from None
    preparation = {"sys_path": sys.path, "sys_argv": sys.argv, "dir": os.getcwd()}
    if b"__main__" in content and not has_cloudpickle():
        main = sys.modules["__main__"]
        name, path = getattr(main.__spec__, "name", None), getattr(main, "__file__", None)
        if not (name or path):
            raise ArgumentError(
                "what was defined in a notebook, or typed in, travels by cloudpickle: pip install cloudpickle"
            )
        preparation |= (
            {"init_main_from_name": name} if name else {"init_main_from_path": os.path.abspath(path or "")}
        )
    return pickle.dumps((preparation, content))


class _Outcomes:
    """The outcomes that ranks have written into the store: ``found``, by rank, in the order in which they were seen."""

    def __init__(self, table: Table, nranks: int) -> None:
        self._table, self._nranks = table, nranks
        self._names = [OUTCOME.format(rank) for rank in range(nranks)]
        self.found: dict[int, Outcome] = {}

    def all_within(self, limit_s: float) -> bool:
        """Wait for all outcomes, and say whether they are there."""
        self._table.get(self._names, limit_s)
        for rank, name in enumerate(self._names):
            if rank not in self.found and (values := self._table.get([name], 0)):
                self.found[rank] = Outcome(*pickle.loads(values[0]))
        return len(self.found) == self._nranks

    def errors(self) -> dict[int, Outcome]:
        """Return the outcomes that are errors, by rank."""
        return {rank: outcome for rank, outcome in self.found.items() if outcome.traceback}

    def missing(self) -> list[int]:
        """Return the ranks without an outcome."""
        return [rank for rank in range(self._nranks) if rank not in self.found]


def _check(outcomes: _Outcomes, ranks: Ranks) -> None:
    """Raise the error of a rank, if there is one: of a process that has ended without an outcome, or else the first that was raised."""
    failed = ranks.failed()
    if failed or ranks.ended():
        outcomes.all_within(0)
    if not (failed or outcomes.errors() or (ranks.ended() and outcomes.missing())):
        return
    outcomes.all_within(_OTHERS_S)
    errors = outcomes.errors()
    lost = failed and failed.rank not in outcomes.found and not (failed.rank < 0 and errors)
    if lost or not errors:
        who = str(failed) if failed else f"{ranks_in_words(outcomes.missing())} ended"
        first = Outcome(PeerFailed(f"{who}, without a result"), "")
    else:
        first = errors.pop(min(errors, key=list(errors).index))
    others = "".join(
        f"\nrank {rank}: {outcome.traceback.splitlines()[-1]}" for rank, outcome in errors.items()
    )
    raise first.value from RankTraceback(first.traceback + others) if first.traceback or others else None
