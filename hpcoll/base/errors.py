"""Exceptions of hpcoll. Imports nothing.

Two families meet a caller: `ArgumentError` is raised before any message leaves and leaves the communicator
usable; `TransportError` means that the MPI library failed and the communicator is suspect.
"""


class HpcollError(Exception):
    """Base of every error that hpcoll raises."""


class ArgumentError(HpcollError, ValueError):
    """A call was refused before any message left. The text names subject, expected, got and rank."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An `ArgumentError` where mpi4py raises TypeError."""


class ArgumentBufferError(ArgumentError, BufferError):
    """An `ArgumentError` where mpi4py raises BufferError."""


class ArgumentKeyError(ArgumentError, KeyError):
    """An `ArgumentError` where mpi4py raises KeyError."""

    __str__ = Exception.__str__  # not the text in quotes


def like(error: Exception, text: str) -> ArgumentError:
    """The `ArgumentError` that callers catch who expect an error of that kind."""
    pairs = (TypeError, ArgumentTypeError), (BufferError, ArgumentBufferError), (KeyError, ArgumentKeyError)
    return next((ours for theirs, ours in pairs if isinstance(error, theirs)), ArgumentError)(text)


class ScheduleError(HpcollError):
    """The verifier refused a schedule.

    Attributes:
        rank: Rank whose step was refused, or -1 when it concerns all.
        step: Index of the step in its channel, or -1.
        op: Name of the step's operation, or the empty string.
    """

    def __init__(self, message: str, *, rank: int = -1, step: int = -1, op: str = "") -> None:
        where = f"rank {rank}" + (f", step {step}" if step >= 0 else "") + (f" ({op})" if op else "")
        super().__init__(f"{where}: {message}" if rank >= 0 else message)
        self.rank, self.step, self.op = rank, step, op


class GradientError(HpcollError, ArithmeticError):
    """Gradients are not finite; raised on every rank."""


class TransportError(HpcollError):
    """The MPI library failed during a collective; the communicator is now suspect.

    Attributes:
        code: MPI error code, or 0 when unknown.
    """

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class CollectiveTimeout(TransportError):
    """A collective did not end in the time it was given."""


class MismatchError(TransportError):
    """Ranks of a communicator called different collectives, or one with different arguments; raised on every one of them."""


class PeerFailed(TransportError):
    """A rank that a collective needs has ended: it was killed, it left, or an exception ended its program."""


class DeviceError(HpcollError):
    """The CUDA driver failed.

    Attributes:
        code: The driver's error code.
    """

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class KernelError(HpcollError):
    """A reduction operator could not be compiled for an element type."""
