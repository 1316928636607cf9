"""Folders are floors: within every folder of hpcoll, imports between its entries point one way, and the low folders need no MPI."""

import ast
import itertools
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HPCOLL = ROOT / "hpcoll"
HEAVY = {"mpi4py", "cupy", "numba", "torch"}

Edge = tuple[str, str]  # importing module, imported module


def sources() -> dict[str, Path]:
    """All modules by name."""
    named = ((path.relative_to(ROOT).with_suffix("").parts, path) for path in sorted(HPCOLL.rglob("*.py")))
    return {".".join(part for part in parts if part != "__init__"): path for parts, path in named}


MODULES = sources()


def imports(module: str, source: str, *, package: bool = False) -> Iterator[Edge]:
    """Every import in a module, wherever it stands; a name that is a module counts as one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((module, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level + package or None] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield module, whole if whole in MODULES else base


@cache
def edges() -> list[Edge]:
    found = {
        e
        for name, path in MODULES.items()
        for e in imports(name, path.read_text(), package=path.name == "__init__.py")
    }
    return sorted(found)


def own(found: Iterable[Edge]) -> list[Edge]:
    return [(importer, imported) for importer, imported in found if imported.split(".")[0] == "hpcoll"]


def between_entries(found: Iterable[Edge]) -> dict[str, dict[str, dict[str, Edge]]]:
    """Folder -> entry -> entry that it imports -> one import that does so. A package's own ``__init__`` is the entry ``""``."""
    graphs: dict[str, dict[str, dict[str, Edge]]] = {}
    for importer, imported in own(found):
        one, other = importer.split("."), imported.split(".")
        shared = next(
            (i for i, pair in enumerate(zip(one, other)) if pair[0] != pair[1]), min(len(one), len(other))
        )
        entry, used = (parts[shared] if len(parts) > shared else "" for parts in (one, other))
        if entry != used:
            graphs.setdefault(".".join(one[:shared]), {}).setdefault(entry, {})[used] = (importer, imported)
    return graphs


def cycle(graph: dict[str, dict[str, Edge]]) -> list[Edge]:
    """The imports that close a cycle between the entries of a folder, or nothing."""
    done: set[str] = set()

    def visit(entry: str, path: list[str]) -> list[Edge]:
        if entry in path:
            ring = [*path[path.index(entry) :], entry]
            return [graph[a][b] for a, b in itertools.pairwise(ring)]
        if entry in done:
            return []
        done.add(entry)
        return next(filter(None, (visit(used, [*path, entry]) for used in graph.get(entry, ()))), [])

    return next(filter(None, (visit(entry, []) for entry in sorted(graph))), [])


def upward(found: Iterable[Edge]) -> list[str]:
    """Folders whose entries import each other in a circle, with the imports that do."""
    circles = {folder: cycle(graph) for folder, graph in between_entries(found).items()}
    return [
        f"{folder}: " + ", ".join(f"{a} imports {b}" for a, b in circle)
        for folder, circle in circles.items()
        if circle
    ]


def test_imports_point_down() -> None:
    assert upward(edges()) == []


def test_kernels_stand_on_the_base_alone() -> None:
    used = {
        imported.split(".")[1] for importer, imported in own(edges()) if importer.startswith("hpcoll.kernels")
    }
    assert used <= {"base", "kernels"}


def test_low_folders_load_no_mpi_gpu_or_compiler() -> None:
    modules = [
        "schedules.catalogue",
        *(f"analysis.{name}" for name in ("verify", "timeline", "render", "render_text", "render_svg")),
    ]
    program = f"""
import importlib, sys
for module in {[*modules, "cli.show"]!r}:
    importlib.import_module("hpcoll." + module)
    print(*sorted(set(sys.modules) & {HEAVY!r}), end="")
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout == ""
