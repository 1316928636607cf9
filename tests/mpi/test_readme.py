"""The README's first Python example runs as it stands, on any number of ranks."""

import re
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI


def test_first_example(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    example = re.search(r"```python\n(.*?)```", text, re.S)
    assert example is not None
    names: dict[str, Any] = {}
    exec(example[1], names)  # noqa: S102
    nranks = MPI.COMM_WORLD.size
    assert (names["x"] == nranks * nranks * (nranks - 1) / 2).all()  # summed twice: the second time equal values
    assert ("allreduce" in capsys.readouterr().out) == (MPI.COMM_WORLD.rank == 0)
