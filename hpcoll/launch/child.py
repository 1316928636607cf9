"""A rank of `hpcoll.run`: it fetches the function from the process that has started it, calls it, and returns what came of that."""

import importlib
import importlib.util
import os
import pickle
import sys
import traceback
from multiprocessing import spawn
from pathlib import Path
from typing import Any, NamedTuple

from hpcoll.base.key_value_server import connect
from hpcoll.base.launchers import LAUNCHERS, number_in

ADDRESS = "_HPCOLL_RUN"  # variable: host, port and key
TASK, OUTCOME = "task", "outcome {}"  # keys of the store


class Outcome(NamedTuple):
    """The outcome of the function on a rank."""

    value: Any  # what it has returned or raised
    traceback: str  # of an error; the empty string where there is none


def main() -> None:
    """Call the function; where it raises, end with exit code 1, and wait for nobody."""
    host, port, key = os.environ[ADDRESS].split()
    connection = connect((host, int(port)), bytes.fromhex(key))

    def ask(*words: Any) -> Any:
        connection.send(words)
        return connection.recv()

    rank = next(number_in(os.environ, row.rank) for row in LAUNCHERS if row.rank in os.environ)
    preparation, content = pickle.loads(ask("get", [TASK], 0)[0])
    try:
        spawn.prepare(preparation)
        del os.environ[
            ADDRESS
        ]  # until here it forbids to call `run`, which a program that is imported may do
        function, arguments = pickle.loads(content)
        ask("set", OUTCOME.format(rank), dumped(Outcome(function(*arguments), "")))
    except BaseException as error:
        ask("set", OUTCOME.format(rank), _of_error(error))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def has_cloudpickle() -> bool:
    """Say whether functions of the program itself can travel as they are."""
    return importlib.util.find_spec("cloudpickle") is not None


def dumped(what: Any) -> bytes:
    """Return a pickle, by cloudpickle where that is installed."""
    pickler: Any = importlib.import_module("cloudpickle" if has_cloudpickle() else "pickle")
    content: bytes = pickler.dumps(what)
    return content


def _of_error(error: BaseException) -> bytes:
    """Return the outcome of a call that raised; an exception that cannot be pickled is told by its text.

    hpcoll's own frames are left out, as where a program does not catch an error.
    """
    told = traceback.TracebackException.from_exception(error)
    if os.environ.get("HPCOLL_TRACEBACK") != "full":
        own = str(Path(__file__).parents[1])
        told.stack = traceback.StackSummary.from_list(
            [frame for frame in told.stack if not frame.filename.startswith(own)]
        )
    text = "".join(told.format()).rstrip()
    try:
        content = dumped(Outcome(error, text))
        pickle.loads(content)
    except Exception:
        content = pickle.dumps(Outcome(RuntimeError(f"{type(error).__name__}: {error}"), text))
    return content
