"""``hpcoll demo``: shows what hpcoll does by commands that anybody can repeat; it needs nothing but the installed package."""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from hpcoll.base.children import python
from hpcoll.base.text import format_nbytes
from hpcoll.cli.output import grid, print_lines, wrapped

_MISTAKE = Path(__file__).with_name("mistake.py")
_LIMIT_S = 300  # of a step: the first program on a machine compiles
_TABLE = "bench.json"
_MAIN = "from hpcoll.cli import main; sys.exit(main())"


class Step(NamedTuple):
    """A sentence, and the command that shows what it says, by what it prints or by the `_TABLE` that it writes."""

    text: str
    command: str
    writes: bool = False


STEPS = (
    Step(
        "A proof: all algorithms of allreduce, for 1 to 16 ranks. Nothing deadlocks, and each contribution counts once.",
        "hpcoll verify allreduce --max-nranks 16",
    ),
    Step(
        "A drawing: an algorithm is data, which says who sends what to whom.",
        "hpcoll show allreduce/recursive_doubling -n 4",
    ),
    Step(
        "A measurement: allreduce of floats on 4 ranks of this machine, beside the MPI library's own.",
        f"hpcoll run -n 4 -m hpcoll bench allreduce -b 1K -e 1M -f 32 -n 20 -w 2 -J {_TABLE}",
        writes=True,
    ),
    Step(
        "A mistake: rank 1 calls Bcast where the others call Allreduce. Nobody hangs, and all learn who called what, and where.",
        "hpcoll run -n 4 mistake.py",
    ),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare that there are no arguments."""
    parser.epilog = "Exit code 1 means that a step failed: hpcoll doctor says why."


def run(_: argparse.Namespace) -> int:
    """Run the steps in a folder of their own; return 1 where one fails."""
    begin, failed = time.monotonic(), list[str]()
    with tempfile.TemporaryDirectory(prefix="hpcoll-demo-") as folder:
        shutil.copy(_MISTAKE, folder)
        for number, step in enumerate(STEPS, 1):
            title = wrapped(f"{number}. {step.text}")
            print("\n".join(["", *title, "", f"$ {step.command}"]), flush=True)
            command = python(_MAIN, *shlex.split(step.command)[1:])
            stdout = subprocess.DEVNULL if step.writes else None
            try:
                code = subprocess.run(
                    command, cwd=folder, timeout=_LIMIT_S, stdout=stdout, check=False
                ).returncode
            except subprocess.TimeoutExpired:
                code = -1
            failed += [step.command] if code else []
            if step.writes and not code:
                print_lines(_measured(Path(folder, _TABLE)))
    seconds = f"{time.monotonic() - begin:.0f} s"
    for line in failed:
        print(f"hpcoll: failed: {line}; hpcoll doctor says what is wrong here", file=sys.stderr)
    print(f"\nThat took {seconds}. The tutorial, docs/tutorial in the sources, goes on from here.")
    return bool(failed)


def _measured(file: Path) -> list[str]:
    """Return the table of a measurement: each size by the library and by hpcoll; and what disturbed it."""
    rows = [["bytes", "library", "hpcoll", "library / hpcoll", "algorithm"]]
    document = json.loads(file.read_text())
    results = document["results"]
    native = {one["size"]: one["out_of_place"]["p50_us"] for one in results if one["algorithm"] == "native"}
    for one in results:
        if one["algorithm"] != "native":
            library, own = native[one["size"]], one["out_of_place"]["p50_us"]
            size = format_nbytes(one["size"])
            rows.append([size, f"{library:.1f} us", f"{own:.1f} us", f"{library / own:.1f}", one["ran"]])
    notes = [line for note in document["notes"] for line in wrapped(note.lstrip("* "), "  ")]
    return [*grid(rows), *notes]
