"""Reads mutated inputs of one format, in a process of its own: ``python fuzz_child.py FORMAT FIRST COUNT``, seeds FIRST and on.

No input may raise anything, take longer than 10 s or more than 1 GB, or bring a character to the terminal that is not printable. Each that
does is printed with its seed, and the status is 1. One that hangs ends the process, with its stack; which it is the line before says.
"""

import contextlib
import faulthandler
import io
import random
import resource
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from fuzz_formats import FORMATS, Format, files_of
from fuzz_mutators import mutated
from slowness import slowed

from hpcoll.base.text import LINE

LIMIT_S, LIMIT_NBYTES = slowed(10), 1 << 30
MOST_FAILURES, SHOWN = 3, 1500  # characters of an input


def main(name: str, first: int, count: int) -> int:
    """1 where an input hurts."""
    warnings.simplefilter("ignore")  # of matplotlib, about letters that its fonts lack
    one, failures = FORMATS[name], 0
    with tempfile.TemporaryDirectory() as folder:
        for turn, sample in enumerate(one.samples()):
            code, _, errors = run(one, files_of(sample, Path(folder)), turn)
            assert code in (0, 1), f"{name}: sample {turn} is refused: {errors}"
        _limit_memory()
        for seed in range(first, first + count):
            sample = input_of(one, name, seed)
            files = files_of(sample, Path(folder))
            # the last line tells what hung
            print(f"{name}, seed {seed}: ", end="", file=sys.__stderr__, flush=True)
            problem = problem_of(one, files, seed)
            print("well" if not problem else "FAILED", file=sys.__stderr__, flush=True)
            if problem:
                failures += 1
                print(f"\n{name}, seed {seed} (python {sys.argv[0]} '{name}' {seed} 1): {problem}")
                for text in sample:
                    print(f"    {text[:SHOWN]!r}")
            if failures == MOST_FAILURES:
                break
    return 1 if failures else 0


def input_of(one: Format, name: str, seed: int) -> list[bytes]:
    """Files of a sample, of which one is changed."""
    dice = random.Random(f"{name}/{seed}")
    sample = list(dice.choice(one.samples()))
    which = dice.randrange(len(sample))
    sample[which] = mutated(sample[which], one.form, dice)
    return sample


def problem_of(one: Format, files: Sequence[Path], seed: int) -> str:
    """Return what an input does that it should not; the empty string where there is nothing."""
    faulthandler.dump_traceback_later(LIMIT_S, exit=True, file=sys.__stderr__)
    try:
        code, said, errors = run(one, files, seed)
    except BaseException:
        return traceback.format_exc()
    finally:
        faulthandler.cancel_dump_traceback_later()
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if code == 2 and not (
        errors.startswith("hpcoll: error: ") and errors.count("\n") == 1 and len(errors) <= LINE + 1
    ):
        return f"an error is one line, got {errors[:SHOWN]!r}"
    if "not enough memory" in errors:
        return f"more than {LIMIT_NBYTES} bytes"
    odd = next(
        (letter for line in f"{said}\n{errors}".split("\n") for letter in line if not letter.isprintable()),
        "",
    )
    return f"{odd!r} would reach the terminal: {said[:SHOWN]!r} {errors[:SHOWN]!r}" if odd else ""


def run(one: Format, files: Sequence[Path], turn: int) -> tuple[int, str, str]:
    """Exit code, and what was printed on both streams."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = one.reads(files, turn)
    return code, out.getvalue(), errors.getvalue()


def _limit_memory() -> None:
    """From what this process has by now."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    limit = int(status["VmData"].split()[0]) * 1024 + LIMIT_NBYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
