"""Imports point down only: the floors of hpcoll, read from the source of every module."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HPCOLL = ROOT / "hpcoll"

# First name below hpcoll -> floor; a package's modules share its floor. "" is hpcoll itself.
FLOORS = {
    **dict.fromkeys(["errors", "units", "ops", "dtypes", "once", "members"], 0),
    **dict.fromkeys(["partition", "patterns", "nodes"], 1),
    **dict.fromkeys(["collectives", "ir"], 2),
    **dict.fromkeys(["schedules", "algorithm", "catalogue", "composition"], 3),
    **dict.fromkeys(["verify", "expressions", "credits", "sweep", "cost", "simulate", "tapes", "play"], 4),
    **dict.fromkeys(["render", "render_text", "render_svg"], 4),
    **dict.fromkeys(["devices", "capsules", "locality", "gpu"], 5),
    **dict.fromkeys(["buffers", "exporters", "packing", "layout", "lowering", "program", "operators", "ledger"], 5),
    **dict.fromkeys(["placement", "placement_device", "ordering", "forecast"], 5),
    **dict.fromkeys(["engines", "transports", "kernels"], 5),
    **dict.fromkeys(["topology", "selection", "tuning", "config"], 6),
    **dict.fromkeys(["agreement", "call", "native", "movements", "memory", "reductions", "describe", "plans", "planner", "context"], 7),
    **dict.fromkeys(["inflight", "requests", "blocking", "nonblocking", "communicator", "mirror", "messages", "message_buffers"], 7),
    **dict.fromkeys(["gpus", "gpu_calls", "gpu_planner"], 7),
    **dict.fromkeys(["", "__main__", "cli", "bench", "gradients", "parameter_server", "torch"], 7),
}
READABLE_ANYWHERE = 4  # floors up to this one need neither MPI nor a GPU nor a compiler
HEAVY = {"mpi4py", "cupy", "numba", "torch"}

Edge = tuple[str, str]  # importing module, imported module


def sources() -> dict[str, Path]:
    """All modules by name; kernels/ is installed as hpcoll.kernels."""
    found = {}
    for top, name in ((HPCOLL, "hpcoll"), (ROOT / "kernels", "hpcoll.kernels")):
        for path in sorted(top.rglob("*.py")):
            parts = [part for part in path.relative_to(top).with_suffix("").parts if part != "__init__"]
            found[".".join([name, *parts])] = path
    return found


MODULES = sources()


def floor(module: str) -> int:
    name = [*module.split("."), ""][1]
    assert name in FLOORS, f"{module} has no floor: give it one in {Path(__file__).name} and in DESIGN.md, section 2"
    return FLOORS[name]


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


def edges() -> list[Edge]:
    found = {e for name, path in MODULES.items() for e in imports(name, path.read_text(), package=path.name == "__init__.py")}
    return sorted(found)


def own(found: Iterable[Edge]) -> list[Edge]:
    return [(importer, imported) for importer, imported in found if imported.split(".")[0] == "hpcoll"]


def upward(found: Iterable[Edge]) -> list[str]:
    """Own imports that point up; kernels may import the ground floor only."""
    offences = []
    for importer, imported in own(found):
        low, high = floor(importer), floor(imported)
        kernel_family = importer.startswith("hpcoll.kernels") and not imported.startswith("hpcoll.kernels")
        if high > (0 if kernel_family else low):
            offences.append(f"{importer} (floor {low}) imports {imported} (floor {high})")
    return offences


def heavy(found: Iterable[Edge]) -> list[str]:
    """Imports of MPI, GPU and compiler libraries below the machine floor."""
    roots = [(importer, imported.split(".")[0]) for importer, imported in found if importer in MODULES]
    return [f"{importer} imports {root}" for importer, root in roots if root in HEAVY and floor(importer) <= READABLE_ANYWHERE]


def cycle(found: Iterable[Edge]) -> list[str]:
    """Modules of one import cycle, or nothing."""
    graph: dict[str, list[str]] = {}
    for importer, imported in own(found):
        graph.setdefault(importer, []).append(imported)
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        done.add(module)
        return next(filter(None, (visit(imported, [*path, module]) for imported in graph.get(module, ()))), [])

    return next(filter(None, (visit(module, []) for module in sorted(graph))), [])


def test_every_module_has_a_floor() -> None:
    assert {floor(module) for module in MODULES} >= {0, 1, 2, 3, 4}


def test_docstrings_say_the_same_floor() -> None:
    said = {module: re.search(r"Floor (\d)", path.read_text()) for module, path in MODULES.items()}
    assert [f"{module} is on floor {floor(module)}" for module, found in said.items() if found and int(found[1]) != floor(module)] == []


def test_imports_point_down() -> None:
    assert upward(edges()) == []


def test_imports_have_no_cycle() -> None:
    assert " -> ".join(cycle(edges())) == ""


def test_low_floors_need_no_mpi_gpu_or_compiler() -> None:
    assert heavy(edges()) == []


@pytest.mark.parametrize("module", ["catalogue", "verify", "simulate", "render", "render_text", "render_svg", "cli", "cli.show"])
def test_low_floors_load_no_mpi_gpu_or_compiler(module: str) -> None:
    program = f"import sys, hpcoll.{module}; print(*sorted(set(sys.modules) & {HEAVY!r}))"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


def test_offences_are_found() -> None:
    upward_edges = imports("hpcoll.ir", "def f() -> None:\n    from hpcoll import verify\n")
    assert upward(upward_edges) == ["hpcoll.ir (floor 2) imports hpcoll.verify (floor 4)"]
    kernel_edges = imports("hpcoll.kernels.host", "from hpcoll import ops, ir")
    assert upward(kernel_edges) == ["hpcoll.kernels.host (floor 5) imports hpcoll.ir (floor 2)"]
    assert upward(imports("hpcoll.ir", "import hpcoll")) == ["hpcoll.ir (floor 2) imports hpcoll (floor 7)"]
    assert heavy(imports("hpcoll.verify", "from mpi4py import MPI")) == ["hpcoll.verify imports mpi4py"]
    assert own(imports("hpcoll.patterns.ring", "from . import binomial")) == [("hpcoll.patterns.ring", "hpcoll.patterns.binomial")]
    assert own(imports("hpcoll.patterns", "from .ring import x", package=True)) == [("hpcoll.patterns", "hpcoll.patterns.ring")]
    assert cycle([("hpcoll.a", "hpcoll.b"), ("hpcoll.b", "hpcoll.c"), ("hpcoll.c", "hpcoll.b")]) == ["hpcoll.b", "hpcoll.c", "hpcoll.b"]
    with pytest.raises(AssertionError, match=r"hpcoll\.novel\.part has no floor: give it one"):
        floor("hpcoll.novel.part")
