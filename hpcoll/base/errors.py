"""The exceptions of hpcoll, in two families.

An `ArgumentError` is raised before any message leaves, and the communicator stays usable. A `TransportError` is raised when a call has
failed half-way, and the communicator is suspect. Imports nothing.
"""

ROW = "\n  "  # begins each row of a table in the text of an error


class HpcollError(Exception):
    """Base class of all errors of hpcoll."""


class ArgumentError(HpcollError, ValueError):
    """hpcoll refused a call before any message left; the text names subject, expected, got and rank.

    The communicator is as before. Where one rank alone is refused, the others wait until it makes the call, makes another, or ends.
    """


class ArgumentTypeError(ArgumentError, TypeError):
    """An `ArgumentError` where mpi4py raises TypeError."""


class ArgumentBufferError(ArgumentError, BufferError):
    """An `ArgumentError` where mpi4py raises BufferError."""


class ArgumentKeyError(ArgumentError, KeyError):
    """An `ArgumentError` where mpi4py raises KeyError."""

    __str__ = Exception.__str__  # not the text in quotes


class SettingsError(ArgumentError):
    """The settings of a rank are wrong, or differ from those of another; raised on all ranks."""


def like(error: Exception, text: str) -> ArgumentError:
    """Return the `ArgumentError` that is also of an error's kind: TypeError, BufferError, KeyError or ValueError."""
    pairs = (TypeError, ArgumentTypeError), (BufferError, ArgumentBufferError), (KeyError, ArgumentKeyError)
    return next((ours for theirs, ours in pairs if isinstance(error, theirs)), ArgumentError)(text)


class ScheduleError(HpcollError):
    """The verifier refused a schedule.

    Attributes:
        rank: Rank of the refused step, or -1.
        step: Index of the step in its channel, or -1.
        op: The step's operation, or the empty string.
    """

    def __init__(self, message: str, *, rank: int = -1, step: int = -1, op: str = "") -> None:
        where = f"rank {rank}" + (f", step {step}" if step >= 0 else "") + (f" ({op})" if op else "")
        super().__init__(f"{where}: {message}" if rank >= 0 else message)
        self.rank, self.step, self.op = rank, step, op


class GradientError(HpcollError, ArithmeticError):
    """A gradient has NaN or infinite elements; raised on every rank, naming parameters and ranks."""


class FileError(HpcollError, OSError):
    """A rank could not write a file that ranks share, or read it; raised on every rank. The communicator is as before.

    Attributes:
        errno: Number of the system's error, as of OSError.
    """

    def __str__(self) -> str:
        return str(self.strerror)


class MissingFileError(FileError, FileNotFoundError):
    """A `FileError` where Python raises FileNotFoundError."""


class TransportError(HpcollError):
    """A call failed half-way. The communicator is suspect, and its later calls raise, too.

    Args:
        message: The text; a table follows its first line, if it has one.

    Attributes:
        code: MPI error code, or 0.
        rank: Rank of the communicator on which it is raised, which the text names first; -1 where that is not known.
        call: This rank's call as the program wrote it, with file and line; empty where it had begun none.
        rows: The table: what each rank called, or does. Empty where there is none.
        failure: A name of the failure that is alike on all ranks; empty where it has none.
    """

    def __init__(
        self, message: str, *, code: int = 0, rank: int = -1, call: str = "", failure: str = ""
    ) -> None:
        super().__init__(f"rank {rank}: {message}" if rank >= 0 else message)
        self.code, self.rank, self.call, self.failure = code, rank, call, failure
        self.rows = tuple(message.split(ROW)[1:])


class CollectiveTimeout(TransportError):
    """A call did not end in time: ``timeout=`` of the call, else the environment variable ``HPCOLL_TIMEOUT``; raised on every rank."""


class MismatchError(TransportError):
    """Ranks of a communicator made different calls, or one with different arguments; raised on all of them, with what each called."""


class PeerFailed(TransportError):
    """A rank that a call needs is gone: it was killed, has left, or an exception ended its program. The text says which, and how."""


class DeviceError(HpcollError):
    """The CUDA driver returned an error.

    Attributes:
        code: The driver's error code, or 0.
    """

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class KernelError(HpcollError):
    """Numba could not compile a reduction operator for an element type; the text has Numba's reason."""


for _public in (
    ArgumentError,
    CollectiveTimeout,
    DeviceError,
    FileError,
    GradientError,
    HpcollError,
    KernelError,
    MismatchError,
    PeerFailed,
    ScheduleError,
    TransportError,
):
    _public.__module__ = __name__.partition(".")[0]  # where programs find it
