"""README and docs say what the code says: tables, names, paths, links, error texts and the stack of folders are compared with it."""

import ast
import inspect
import itertools
import re
from collections.abc import Iterator
from functools import lru_cache

import pytest
from pages import BLOCKS, LANGUAGES, PAGES, REASONS, ROOT, Block, between, misfits, prose
from test_architecture import between_entries

import hpcoll
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.row import Algorithm
from hpcoll.selection.config import VARIABLES, Variable

MOST_COLUMNS = 140  # of prose
SOURCES = [*ROOT.glob("hpcoll/**/*.py")]
OTHER_PAGES = ("jobs/README.md", "examples/README.md", "tests/cluster/README.md", "CHANGES.md")
LINKING = PAGES | {page: (ROOT / page).read_text() for page in OTHER_PAGES}

_VARIABLE = re.compile(r"\bHPCOLL_[A-Z][A-Z_]*\b")
_PATH = re.compile(r"(?<![\w./<*-])(?:hpcoll|jobs|examples|tests|benchmarks|docs)/[^\s`()\[\],:;]*")
_NAMED = re.compile(r"`([\w/]+\.py)`\s+\(((?:`[\w.]+`(?:,\s+)?)+)\)")  # a file, and names in it


# --- tables


def row_text(row: Algorithm) -> str:
    """Return one line of the catalogue's table."""
    canonical = f"canonical where `{row.canonical}`" if row.canonical != "1" else "canonical"
    promises = (
        ("any operator", row.ordered),
        (canonical, row.canonical != ""),
        ("equal blocks only", row.uniform),
    )
    remarks = [text for text, holds in promises if holds]
    return f"| {row.key} | `{row.rounds}` | `{row.sent}` | {', '.join(remarks)} |"


def catalogue_table() -> str:
    lines = ["| algorithm | rounds | bytes sent / m | |", "|---|---|---|---|"]
    return "\n".join([*lines, *(row_text(row) for row in CATALOGUE.values())])


def variables_table() -> str:
    """Return one row per variable; those that say the same are one."""
    lines = ["| variable | takes | meaning | without it |", "|---|---|---|---|"]

    def text(one: Variable) -> tuple[str, str, str]:
        return one.takes, one.meaning, one.default

    for texts, alike in itertools.groupby(VARIABLES, key=text):
        lines.append(f"| {', '.join(f'`{one.name}`' for one in alike)} | {' | '.join(texts)} |")
    return "\n".join(lines)


def algorithms_table() -> str:
    """Return one row per collective."""
    groups = itertools.groupby(CATALOGUE.values(), key=lambda row: row.collective)
    rows = [f"| {collective} | {', '.join(row.name for row in alike)} |" for collective, alike in groups]
    return "\n".join(["| collective | algorithms, and `native`, the MPI library's own |", "|---|---|", *rows])


def test_catalogue_in_docs() -> None:
    assert between("docs/reference/catalogue.md", "catalogue") == catalogue_table(), (
        f"the table should be:\n{catalogue_table()}"
    )
    assert between("README.md", "algorithms") == algorithms_table(), (
        f"the table should be:\n{algorithms_table()}"
    )


def test_variables_in_docs() -> None:
    assert between("docs/reference/environment.md", "variables") == variables_table(), (
        f"the table should be:\n{variables_table()}"
    )


@lru_cache(maxsize=1)
def texts_of_code() -> str:
    """All text literals of the library, a line each; what is put into an f-string is left out."""
    nodes = itertools.chain.from_iterable(ast.walk(ast.parse(path.read_text())) for path in SOURCES)
    return "\n".join(
        node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def test_every_variable_is_in_the_table() -> None:
    """Wherever the code, the jobs or the docs name one."""
    names = {one.name for one in VARIABLES}
    jobs = "\n".join(path.read_text() for path in (ROOT / "jobs").iterdir() if path.is_file())
    assert set(_VARIABLE.findall(texts_of_code() + jobs + "".join(LINKING.values()))) - names == set()


# --- paths, links, names


def missing_paths(text: str) -> set[str]:
    """Files and folders of the checkout that a text names and that are not there."""
    found = {path.rstrip("/.") for path in _PATH.findall(text) if not set("<*") & set(path)}
    return {path for path in found if not (ROOT / path).exists()}


def anchors(text: str) -> set[str]:
    """Headings, as links name them."""
    headings = [line.lstrip("#").strip().lower() for line in text.splitlines() if line.startswith("#")]
    return {re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in headings}


def dead_links(page: str, text: str) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        if path.startswith("https://"):
            continue
        file = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        if not file.is_file() or (anchor and anchor not in anchors(file.read_text())):
            yield target


def unknown_names(text: str) -> list[str]:
    """Names that a text says are in a file, "`FILE` (`NAME`, `NAME`)", and are not."""
    return [
        f"{path}: {name}"
        for path, names in _NAMED.findall(text)
        for name in re.findall(r"`([\w.]+)`", names)
        if not re.search(rf"\b{name.rpartition('.')[2]}\b", (ROOT / path).read_text())
    ]


@pytest.mark.parametrize("page", LINKING)
def test_what_pages_name_is_there(page: str) -> None:
    assert missing_paths(LINKING[page]) == set()
    assert list(dead_links(page, LINKING[page])) == []
    assert unknown_names(LINKING[page]) == []


def test_readme_leads_to_every_part() -> None:
    """From there every page can be reached: tests/run.sh docs refuses one that is not in the site's table of contents."""
    parts = {page.split("/")[1] for page in PAGES if page.count("/") == 2}
    assert parts == set(re.findall(r"\]\(docs/(\w+)/\w+\.md\)", PAGES["README.md"]))


# --- code


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_blocks_are_run_or_say_why_not(block: Block) -> None:
    assert block.language in LANGUAGES
    if block.reason:
        assert block.reason in REASONS
        assert misfits(block) == []


def test_most_code_is_run() -> None:
    code = [block for block in BLOCKS if block.language != "text"]
    left_out = [str(block) for block in code if block.reason]
    assert 2 * len(left_out) < len(code), left_out


# --- prose


@pytest.mark.parametrize("page", LINKING)
def test_prose_fits_a_screen(page: str) -> None:
    assert [line for line in prose(LINKING[page]) if len(line) > MOST_COLUMNS] == []


def not_in_code(text: str) -> list[str]:
    """Pieces of symptoms, the first column of tables, that no text of the code has; three dots stand for what is put in."""
    quoted = re.findall(
        r"`([^`]+)`", "\n".join(line.split(" | ")[0] for line in text.splitlines() if line.startswith("|"))
    )
    pieces = [piece.strip(" ") for symptom in quoted for piece in symptom.split("...")]
    return [piece for piece in pieces if " " in piece and piece not in texts_of_code()]


def test_symptoms_are_texts_of_the_code() -> None:
    assert not_in_code(PAGES["docs/how_to/troubleshooting.md"]) == []


# --- the stack of folders


def floors(title: str) -> list[str]:
    """Entries of a folder as the diagram stacks them, the lowest first."""
    diagram = next(
        block.text
        for block in BLOCKS
        if block.page == "docs/development/architecture.md" and block.text.startswith(title)
    )
    return [line.split()[0].rstrip("/") for line in reversed(diagram.splitlines()[1:])]


@pytest.mark.parametrize("folder", ["hpcoll", "hpcoll/comm", "hpcoll/runtime"])
def test_diagrams_are_the_folders(folder: str) -> None:
    stack = floors(f"{folder}/")
    there = {
        path.name for path in (ROOT / folder).iterdir() if path.is_dir() and (path / "__init__.py").exists()
    }
    assert set(stack) == there
    graph = between_entries()[folder.replace("/", ".")]
    floor = {entry: i for i, entry in enumerate(stack)}
    upward = [
        (entry, used) for entry in stack for used in graph.get(entry, ()) if floor.get(used, 0) > floor[entry]
    ]
    assert upward == []


# --- docstrings


def test_public_names_are_documented() -> None:
    for name in hpcoll.__all__:
        if name != "AVG" and not name.endswith("Communicator"):  # a value; needs MPI: see tests/mpi
            assert inspect.getdoc(getattr(hpcoll, name)), name


def test_every_module_has_a_docstring() -> None:
    for file in SOURCES:
        assert file.read_text().startswith('"""'), file
