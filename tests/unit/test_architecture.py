"""Folders are floors: within every folder of hpcoll, imports between its entries point one way, and the low folders need no MPI."""

import ast
import itertools
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HPCOLL = ROOT / "hpcoll"
HEAVY = {"mpi4py", "cupy", "numba", "torch"}


def sources() -> dict[str, Path]:
    """All modules by name."""
    named = ((path.relative_to(ROOT).with_suffix("").parts, path) for path in sorted(HPCOLL.rglob("*.py")))
    return {".".join(part for part in parts if part != "__init__"): path for parts, path in named}


MODULES = sources()


@cache
def imports() -> list[tuple[str, str]]:
    """Every import of hpcoll's modules, wherever it stands; a name that is a module counts as one."""
    found = set()
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {(name, alias.name) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                whole = [f"{node.module}.{alias.name}" for alias in node.names]
                found |= {(name, one if one in MODULES else str(node.module)) for one in whole}
    return sorted(found)


@cache
def between_entries() -> dict[str, dict[str, set[str]]]:
    """Folder -> entry -> entries that it imports. A package's own ``__init__`` is the entry ``""``."""
    graphs: dict[str, dict[str, set[str]]] = {}
    for importer, imported in imports():
        one, other = importer.split("."), imported.split(".")
        if other[0] != "hpcoll":
            continue
        alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other))
        shared = len(list(alike))
        entry, used = (parts[shared] if len(parts) > shared else "" for parts in (one, other))
        if entry != used:
            graphs.setdefault(".".join(one[:shared]), {}).setdefault(entry, set()).add(used)
    return graphs


@pytest.mark.parametrize("folder", between_entries())
def test_imports_point_down(folder: str) -> None:
    """A circle is an error that names the entries of the folder that import each other."""
    TopologicalSorter(between_entries()[folder]).prepare()


def test_kernels_stand_on_the_base_alone() -> None:
    graph = between_entries()["hpcoll"]
    assert graph["kernels"] <= {"base"}


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
