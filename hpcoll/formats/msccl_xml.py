"""Reader of MSCCL XML: elements and attributes, checked one by one; `hpcoll.formats.msccl_steps` says what they mean.

A file is not trusted. Doctypes and entities are refused, and so is what is larger than the limits below and its budget: a file that is
read takes less than a gigabyte of memory. Errors name file, line, gpu, thread block and step.

A gpu may have elements ``copy``, which TACCL and TE-CCL write for chunks of INPUT that OUTPUT holds, too. MSCCL does not run them, so they
mean nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NoReturn
from xml.parsers import expat

from hpcoll.base.budget import CELLS, CHANNELS, NAMED, STEPS, Budget
from hpcoll.base.errors import ArgumentError
from hpcoll.base.files import reading
from hpcoll.base.text import LINE, MAX_BUILT, MAX_CHUNKS, format_nbytes, printable, quoted
from hpcoll.formats.program import FilePlace
from hpcoll.schedules.ir import Buffer, Chunk

MAX_NBYTES, MAX_ELEMENT = 64 << 20, 1 << 20  # of a file, and of one of its elements or comments
MAX_IDS = 1 << 16  # of thread blocks and channels
TYPES = ("s", "r", "rcs", "rrc", "rrs", "rrcs", "re", "cpy", "nop")
BUFFERS = "ios"  # letters, by `Buffer`
_BUFFERS = dict(zip(BUFFERS, Buffer))
_PIECE = 1 << 16  # bytes that are parsed at once
_DIGITS = 20  # of a number
_ANY = 2**63 - 1  # bytes from which on a file is for messages of any length
_PARENTS = {"algo": "", "gpu": "algo", "tb": "gpu", "copy": "gpu", "step": "tb"}


@dataclass(slots=True)
class XmlStep:
    """A step of a thread block; one that reads or writes nothing has any source or target."""

    line: int  # of the file; before there is one, the step's turn among those of the gpu
    type: str
    src: Chunk
    dst: Chunk
    needs: tuple[int, int] = (-1, -1)  # thread block and step that it waits for
    hasdep: bool = False  # others can wait for it


@dataclass(slots=True)
class XmlBlock:
    """A thread block; its peers are -1 where it has none."""

    id: int
    send: int
    recv: int
    chan: int
    line: int = -1
    steps: list[XmlStep] = field(default_factory=list)


class XmlGpu(NamedTuple):
    """A gpu with the sizes of its buffers, in chunks, and its thread blocks by id."""

    line: int
    id: int
    sizes: tuple[int, ...]  # of INPUT, OUTPUT and SCRATCH
    blocks: dict[int, XmlBlock]


class XmlFile(NamedTuple):
    """The content of a file; ``inplace`` and ``outofplace`` are None where the file does not say."""

    path: str
    name: str
    coll: str
    nranks: int
    nchunks: int
    root: int
    inplace: bool | None
    outofplace: bool | None
    min_bytes: int
    max_bytes: int
    gpus: list[XmlGpu]


def read_xml(path: Path) -> XmlFile:
    """Return the content of a file; ArgumentError: it cannot be read, is too large, is not well-formed, or not of this format."""
    reader = _Reader(printable(str(path), LINE))
    try:
        with reading(path) as file:
            while piece := file.read(_PIECE):
                reader.feed(piece)
        reader.end()
    except OSError as error:
        raise ArgumentError(f"cannot read {reader.path}: {error.strerror}") from None
    except (expat.ExpatError, ValueError, LookupError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"{reader.path}: expected XML, got {printable(str(error))}") from None
    return reader.content()


class _Reader:
    """A parser's handlers, and what they have found."""

    def __init__(self, path: str) -> None:
        self.path, self._open = path, [""]
        self._fed = self._last = 0
        self._budget = Budget(self._refused)
        self._algo: XmlFile | None = None
        self._gpus: dict[int, XmlGpu] = {}
        self._block: XmlBlock | None = None
        self._parser = parser = expat.ParserCreate()
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = self._declared
        parser.CommentHandler = self._moved_on

    def feed(self, piece: bytes) -> None:
        """Parse the next bytes."""
        self._fed += len(piece)
        if self._fed > MAX_NBYTES:
            raise ArgumentError(f"{self.path}: expected at most {format_nbytes(MAX_NBYTES)}, got more")
        self._parser.Parse(piece)
        if self._fed - self._last > MAX_ELEMENT:
            raise self._refused(
                f"expected elements of at most {format_nbytes(MAX_ELEMENT)}, got a longer one"
            )

    def end(self) -> None:
        """Parse the end of the file."""
        self._parser.Parse(b"", True)

    def content(self) -> XmlFile:
        """Return what was found; the gpus in order of their ids."""
        if self._algo is None:
            raise ArgumentError(f"{self.path}: expected an element algo, got none")
        missing = [rank for rank in range(self._algo.nranks) if rank not in self._gpus]
        if missing:
            raise ArgumentError(
                f"{self.path}: expected {self._algo.nranks} gpus, got none with id {missing[0]}"
            )
        return self._algo._replace(gpus=[self._gpus[rank] for rank in range(self._algo.nranks)])

    def _declared(self, *_: object) -> NoReturn:
        raise self._refused("expected no doctype and no entities, got a declaration")

    def _moved_on(self, *_: object) -> None:
        self._last = self._parser.CurrentByteIndex

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._last = self._parser.CurrentByteIndex
        if _PARENTS.get(name) != self._open[-1]:
            expected = [child for child, parent in _PARENTS.items() if parent == self._open[-1]] or [
                "no element"
            ]
            raise self._refused(
                f"expected {expected[0]} in {self._open[-1] or 'the file'}, got {quoted(name)}"
            )
        start = {
            "algo": self._start_algo,
            "gpu": self._start_gpu,
            "tb": self._start_block,
            "step": self._start_step,
        }.get(name)
        if start:
            start(attributes)
        self._open.append(name)

    def _end(self, name: str) -> None:
        self._last = self._parser.CurrentByteIndex
        self._open.pop()
        if name == "tb":
            self._block = None

    def _start_algo(self, attributes: dict[str, str]) -> None:
        inplace, outofplace = (
            bool(self._integer(attributes, key, 0, 1)) if key in attributes else None
            for key in ("inplace", "outofplace")
        )
        least, most = (self._integer(attributes, key, 0, 2**64 - 1, 0) for key in ("minBytes", "maxBytes"))
        self._algo = XmlFile(
            self.path,
            printable(attributes.get("name", "")),
            attributes.get("coll", ""),
            self._integer(attributes, "ngpus", 1, MAX_BUILT),
            self._integer(attributes, "nchunksperloop", 1, MAX_CHUNKS),
            self._integer(attributes, "root", 0, MAX_BUILT - 1, 0),
            inplace,
            outofplace,
            least,
            most if most < _ANY else 0,
            [],
        )

    def _start_gpu(self, attributes: dict[str, str]) -> None:
        assert self._algo is not None
        rank = self._integer(attributes, "id", 0, self._algo.nranks - 1)
        if rank in self._gpus:
            raise self._refused(f"expected one gpu with id {rank}, got a second")
        sizes = tuple(self._integer(attributes, f"{buffer}_chunks", 0, MAX_CHUNKS) for buffer in BUFFERS)
        self._budget.spend(max(sum(sizes), 2 * self._algo.nchunks), CELLS)
        self._gpus[rank] = XmlGpu(self._parser.CurrentLineNumber, rank, sizes, {})

    def _start_block(self, attributes: dict[str, str]) -> None:
        assert self._algo is not None
        gpu = list(self._gpus.values())[-1]
        last = self._algo.nranks - 1
        number, send, recv, chan = (
            self._integer(attributes, key, least, most)
            for key, least, most in (
                ("id", 0, MAX_IDS),
                ("send", -1, last),
                ("recv", -1, last),
                ("chan", -1, MAX_IDS),
            )
        )
        self._budget.spend(1, CHANNELS)
        if number in gpu.blocks:
            raise self._refused(f"expected one thread block with id {number}, got a second")
        if gpu.id in (send, recv):
            raise self._refused(
                f"expected another gpu as the peer of thread block {number}, got {gpu.id} itself"
            )
        if chan < 0 and (send >= 0 or recv >= 0):
            raise self._refused(f"expected a channel of thread block {number}, which has peers, got {chan}")
        self._block = gpu.blocks[number] = XmlBlock(number, send, recv, chan, self._parser.CurrentLineNumber)

    def _start_step(self, attributes: dict[str, str]) -> None:
        assert self._block is not None
        steps = self._block.steps
        self._integer(attributes, "s", len(steps), len(steps))
        kind = self._one_of(attributes, "type", TYPES)
        buffers = [_BUFFERS[self._one_of(attributes, key, BUFFERS)] for key in ("srcbuf", "dstbuf")]
        offsets = [self._integer(attributes, key, -1) for key in ("srcoff", "dstoff")]
        cnt = self._integer(attributes, "cnt", 0, MAX_CHUNKS)
        depid = self._integer(attributes, "depid", -1)
        deps = self._integer(attributes, "deps", -1 if depid < 0 else 0)
        hasdep = bool(self._integer(attributes, "hasdep", 0, 1))
        self._budget.spend(1, STEPS)
        self._budget.spend(cnt, NAMED)
        src, dst = (Chunk(buffer, offset, cnt) for buffer, offset in zip(buffers, offsets))
        steps.append(XmlStep(self._parser.CurrentLineNumber, kind, src, dst, (depid, deps), hasdep))

    def _one_of(self, attributes: Mapping[str, str], key: str, wanted: Sequence[str]) -> str:
        text = attributes.get(key)
        if text is None or text not in [*wanted]:
            raise self._refused(
                f"expected {key} to be one of {', '.join(wanted)}, got {'none' if text is None else quoted(text)}"
            )
        return wanted[wanted.index(text)]  # one object for all

    def _integer(
        self,
        attributes: Mapping[str, str],
        key: str,
        least: int,
        most: int = _ANY,
        default: int | None = None,
    ) -> int:
        text = attributes.get(key)
        if text is None and default is not None:
            return default
        digits = (text or "").removeprefix("-")
        if (
            digits.isascii()
            and digits.isdecimal()
            and len(digits) <= _DIGITS
            and least <= (number := int(text or "")) <= most
        ):
            return number
        expected = (
            f"{least}"
            if least == most
            else f"an integer from {least}" + (f" to {most}" if most < _ANY else "")
        )
        raise self._refused(
            f"expected {key} to be {expected}, got {'none' if text is None else quoted(text)}"
        )

    def _refused(self, text: str) -> ArgumentError:
        """Return an error with the place of the element that is read."""
        gpu = list(self._gpus)[-1] if "gpu" in self._open else -1
        block, step = (self._block.id, len(self._block.steps)) if self._block else (-1, -1)
        return ArgumentError(
            f"{self.path}, {FilePlace(self._parser.CurrentLineNumber, gpu, block, step)}: {text}"
        )
