"""A machine that runs the PTX text of a kernel on host memory: what the compiler made, not what was meant.

It knows the instructions that hpcoll's kernels are made of and raises KeyError on any other. Threads take turns. One runs until it ends,
comes to a barrier, or has loaded a word with ``ld.acquire``, which somebody else may store: another process, too, where the host's own
stores keep their order, as those of x86-64 do.
"""

import ctypes
import operator
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Registers = dict[str, Any]

_JUNK = 0x5A5A5A5A5A5A5A5A
_MASK = {bits: (1 << bits) - 1 for bits in (8, 16, 32, 64)}
_END, _BARRIER, _ACQUIRE = "ret", "bar.sync", "ld.acquire.sys.global.u64"
_STOPS = frozenset({_END, _BARRIER, _ACQUIRE})  # where a turn ends


def _decode(bits: int, kind: str) -> Any:
    """A register's bits as a number of a type like ``s32`` or ``f16``."""
    if kind == "pred":
        return bits
    letter, width = kind[0], int(kind[1:])
    bits &= _MASK[width]
    if letter == "f":
        return np.array(bits, f"u{width // 8}").view(f"f{width // 8}")[()]
    return bits - (1 << width) if letter == "s" and bits >> (width - 1) else bits


def _encode(value: Any, kind: str) -> int:
    if kind == "pred":
        return int(bool(value))
    width = int(kind[1:])
    if kind[0] == "f":
        return int(np.array(value, f"f{width // 8}").view(f"u{width // 8}")[()])
    return int(value) & _MASK[width]


def _divide(a: Any, b: Any) -> Any:
    if isinstance(a, np.floating):
        return a / b
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: int, b: int) -> int:
    return a - b * int(_divide(a, b))


def _permute(source: int, picks: int) -> int:
    """Four of eight bytes; a pick with its highest bit set is the sign of its byte, eight times."""
    found = 0
    for index in range(4):
        pick = picks >> 4 * index & 15
        byte = source >> 8 * (pick & 7) & 255
        found |= (byte if pick < 8 else 255 * (byte >> 7)) << 8 * index
    return found


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _divide,
    "rem": _remainder,
    "min": min,
    "max": max,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": lambda a, b: a == a and b == b and a != b,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "lo": operator.lt,
    "ls": operator.le,
    "hi": operator.gt,
    "hs": operator.ge,
    "nan": lambda a, b: a != a or b != b,
    "num": lambda a, b: a == a and b == b,
    "neu": operator.ne,
    "equ": lambda a, b: not (a < b or a > b),
    "ltu": lambda a, b: not a >= b,
    "leu": lambda a, b: not a > b,
    "gtu": lambda a, b: not a <= b,
    "geu": lambda a, b: not a < b,
}


class Stuck(Exception):
    """Threads that wait, and for nothing that will come."""


class _Thread:
    """Where a thread is: the instruction that comes next, and its registers."""

    __slots__ = ("at", "registers")

    def __init__(self, registers: Registers) -> None:
        self.at, self.registers = 0, registers


class Machine:
    """A kernel's text, ready to run.

    Args:
        text: PTX of one entry without a stack and without calls.
    """

    def __init__(self, text: str) -> None:
        text = re.sub(r"//[^\n]*", "", text)
        self.code: list[tuple[str, list[str], str]] = []
        self.labels: dict[str, int] = {}
        self.vector_loads = 0  # so far
        for line in re.split(r"[;\n]", text[text.index("{") + 1 : text.rindex("}")].replace("{\n", "")):
            self._read(line.strip())

    def _read(self, line: str) -> None:
        if line.endswith(":"):
            self.labels[line[:-1]] = len(self.code)
            return
        found = re.match(r"(?:@(!?%\w+)\s+)?([a-z][\w.]*)\s*(.*)", line)
        if found and not line.startswith("."):
            operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", found[3])
            self.code.append((found[2], operands, found[1] or ""))

    def launch(self, grid: int, block: int, arguments: Sequence[int | float], patience: float = 30.0) -> None:
        """Run all threads of all blocks at once.

        Args:
            grid: Number of blocks.
            block: Threads of each.
            arguments: Integers are addresses and counts, floats are float64.
            patience: Seconds after which what waits for others is given up, if no block has passed a barrier or ended.

        Raises:
            Stuck: says which threads wait where.
        """
        bits = [_encode(one, "f64" if isinstance(one, float) else "s64") for one in arguments]
        blocks = [
            [
                _Thread({"%ctaid.x": ctaid, "%tid.x": tid, "%ntid.x": block, "%nctaid.x": grid})
                for tid in range(block)
            ]
            for ctaid in range(grid)
        ]
        moved = time.monotonic()
        while blocks:
            stops = [self._turn(threads, bits) for threads in blocks]
            blocks = [threads for threads, stop in zip(blocks, stops, strict=True) if stop != _END]
            if any(stop != _ACQUIRE for stop in stops):
                moved = time.monotonic()
            elif time.monotonic() - moved > patience:
                raise Stuck(f"nothing has moved for {patience} s: {self._where(blocks)}")
            else:
                time.sleep(1e-4)

    def _turn(self, threads: list[_Thread], parameters: list[int]) -> str:
        """Give a turn to each thread that is not at a barrier; let all pass it if all are there. Returns what the block has come to."""
        for thread in threads:
            if self.code[thread.at][0] not in (_END, _BARRIER):
                self._run(thread, parameters)
        stops = {self.code[thread.at][0] for thread in threads}
        if _ACQUIRE in stops:
            return _ACQUIRE
        if len(stops) > 1:
            raise Stuck(f"some threads of a block have ended: {self._where([threads])}")
        if _BARRIER in stops:
            for thread in threads:
                thread.at += 1
        return stops.pop()

    def _where(self, blocks: list[list[_Thread]]) -> str:
        waiting: dict[tuple[int, int], list[int]] = {}
        for one in (one for threads in blocks for one in threads if self.code[one.at][0] != _END):
            waiting.setdefault((one.registers["%ctaid.x"], one.at), []).append(one.registers["%tid.x"])
        return "; ".join(
            f"threads {tids} of block {block} wait at instruction {at}, {self.code[at][0]}"
            for (block, at), tids in waiting.items()
        )

    def _run(self, thread: _Thread, parameters: list[int]) -> None:
        """Do what a thread waited to load, and all up to the next stop."""
        at, registers = thread.at, thread.registers
        if self.code[at][0] == _ACQUIRE:
            self._memory(_ACQUIRE.split("."), self.code[at][1], registers, parameters)
            at += 1
        while True:
            opcode, operands, guard = self.code[at]
            if guard and bool(registers[guard.lstrip("!")]) == guard.startswith("!"):
                at += 1
            elif opcode in _STOPS:
                break
            elif opcode.startswith("bra"):
                at = self.labels[operands[0]]
            else:
                at += 1
                self._step(opcode.split("."), operands, registers, parameters)
        thread.at = at

    def _step(
        self, words: list[str], operands: list[str], registers: Registers, parameters: list[int]
    ) -> None:
        name, kind = words[0], words[-1]
        if name in ("ld", "st"):
            self._memory(words, operands, registers, parameters)
        elif name == "mov":
            self._move(kind, operands, registers)
        else:
            values = [self._value(one, registers) for one in operands[1:]]
            registers[operands[0]] = self._compute(name, words[1:], kind, values)

    def _compute(self, name: str, words: list[str], kind: str, bits: list[int]) -> int:
        if name == "cvta":
            return bits[0]
        if name == "setp":
            return int(bool(_COMPARE[words[0]](_decode(bits[0], kind), _decode(bits[1], kind))))
        if name == "selp":
            return bits[0] if bits[2] else bits[1]
        if name == "cvt":
            found = _encode(_decode(bits[0], kind), words[-2])
            # fills a wider register with its sign
            return _decode(found, words[-2]) & _MASK[64] if words[-2][0] == "s" else found
        if name in ("shl", "shr"):
            by, width = min(bits[1] & _MASK[32], 64), int(kind[1:])
            value = _decode(bits[0], kind)
            return _encode(value << by if name == "shl" else value >> min(by, width), kind)
        if name == "prmt":
            return _permute(bits[0] & _MASK[32] | (bits[1] & _MASK[32]) << 32, bits[2])
        values = [_decode(one, kind) for one in bits]
        if name in ("add", "sub") and words[-2:-1] == ["f32"]:  # of float32 and a narrower number
            values, kind = [np.float32(values[0]), _decode(bits[1], "f32")], "f32"
        with np.errstate(all="ignore"):
            return self._arithmetic(name, words, kind, values)

    def _arithmetic(self, name: str, words: list[str], kind: str, values: list[Any]) -> int:
        if name == "not":
            return _encode(~values[0] if kind != "pred" else not values[0], kind)
        if name in ("neg", "abs"):
            return _encode(-values[0] if name == "neg" else abs(values[0]), kind)
        if name == "rcp":
            return _encode(type(values[0])(1) / values[0], kind)
        if name == "mad":
            assert words[0] == "lo"
            return _encode(values[0] * values[1] + values[2], kind)
        found = _BINARY[name](values[0], values[1])
        return _encode(found, f"{kind[0]}{2 * int(kind[1:])}" if "wide" in words else kind)

    def _value(self, operand: str, registers: Registers) -> int:
        if operand in registers:
            return int(registers[operand])
        if operand.startswith(("0f", "0d")):
            return int(operand[2:], 16)
        if operand.startswith("%"):
            return _JUNK  # never written: the compiler may fill half of a pair with anything
        return int(operand.rstrip("U"), 0) & _MASK[64]

    def _move(self, kind: str, operands: list[str], registers: Registers) -> None:
        target, source = operands
        if target.startswith("{"):
            parts = re.findall(r"[%\w]+", target)
            width, bits = int(kind[1:]) // len(parts), self._value(source, registers)
            for index, part in enumerate(parts):
                registers[part] = bits >> width * index & _MASK[width]
        elif source.startswith("{"):
            parts = re.findall(r"[%\w.]+", source)
            width = int(kind[1:]) // len(parts)
            registers[target] = sum(
                (self._value(part, registers) & _MASK[width]) << width * index
                for index, part in enumerate(parts)
            )
        else:
            registers[target] = self._value(source, registers) & (
                1 if kind == "pred" else _MASK[int(kind[1:])]
            )

    def _memory(
        self, words: list[str], operands: list[str], registers: Registers, parameters: list[int]
    ) -> None:
        place = next(one for one in operands if one.startswith("["))
        if words[1] == "param":
            found = re.search(r"_param_(\d+)\]", place)
            assert found
            registers[operands[0]] = parameters[int(found[1])]
            return
        kind, width = words[-1], int(words[-1][1:]) // 8
        names = re.findall(r"%\w+", next(one for one in operands if one is not place))
        address = self.address(place, registers)
        assert address % (width * len(names)) == 0, f"{'.'.join(words)} at {address:#x} is not aligned"
        self.vector_loads += words[0] == "ld" and len(names) > 1
        for index, register in enumerate(names):
            if words[0] == "ld":
                raw = int.from_bytes(ctypes.string_at(address + index * width, width), "little")
                registers[register] = _decode(raw, kind) & _MASK[64] if kind[0] == "s" else raw
            else:
                ctypes.memmove(
                    address + index * width,
                    int(registers[register] & _MASK[8 * width]).to_bytes(width, "little"),
                    width,
                )

    def address(self, place: str, registers: Registers) -> int:
        """Return the address that an operand like ``[%rd1+8]`` is."""
        base, offset = re.fullmatch(r"\[(%\w+)(?:\+(-?\d+))?\]", place).groups()  # type: ignore[union-attr]
        return int(registers[base] + int(offset or 0)) & _MASK[64]
