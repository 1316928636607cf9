"""Extension of griffe (mkdocs.yml): methods that modules make when they are imported, with the docstrings that these have then."""

import inspect
import re
from importlib import import_module
from typing import Any

import griffe
import mpi4py

MAKERS = (
    "hpcoll.comm.methods.blocking",
    "hpcoll.comm.methods.nonblocking",
    "hpcoll.comm.methods.point_to_point",
    "hpcoll.comm.methods.blocking_neighbours",
)


def spelled(default: Any) -> str:
    """Return a default value as a program writes it."""
    from mpi4py import MPI

    named = {id(getattr(MPI, name)): f"MPI.{name}" for name in ("SUM", "INFO_NULL")}
    return named.get(id(default)) or repr(default)


def spelled_type(annotation: Any) -> str:
    """Return an annotation with the short names of mpi4py's and hpcoll's types."""
    return re.sub(r"hpcoll\.[\w.]+\.|mpi4py\.", "", inspect.formatannotation(annotation))


class MadeMethods(griffe.Extension):
    """Gives the classes of the modules in `MAKERS` the methods and docstrings that they have at run time."""

    def on_module_members(self, *, mod: griffe.Module, **_: Any) -> None:
        """Complete the classes of a module."""
        if mod.path not in MAKERS:
            return
        mpi4py.rc.initialize = False
        made, parser = import_module(mod.path), mod.docstring.parser if mod.docstring else None
        for owner in [one for one in mod.members.values() if isinstance(one, griffe.Class)]:
            for name, member in list(owner.members.items()):
                found = vars(getattr(made, owner.name)).get(name)
                if name.startswith("_") or not inspect.isfunction(found):
                    continue
                if isinstance(member, griffe.Attribute) or "keywords" in member.parameters:
                    member = griffe.Function(
                        name, parameters=self._parameters(found), returns=self._returns(found)
                    )
                    owner.set_member(name, member)
                member.docstring = griffe.Docstring(inspect.getdoc(found) or "", parent=member, parser=parser)

    @staticmethod
    def _parameters(found: Any) -> griffe.Parameters:
        """Return a method's parameters."""
        parameters = inspect.signature(found).parameters.values()
        return griffe.Parameters(
            *(
                griffe.Parameter(
                    one.name,
                    annotation=None if one.annotation is one.empty else spelled_type(one.annotation),
                    kind=griffe.ParameterKind(one.kind.description),
                    default=None if one.default is one.empty else spelled(one.default),
                )
                for one in parameters
            )
        )

    @staticmethod
    def _returns(found: Any) -> str:
        """Return the annotation of a method's result."""
        return spelled_type(inspect.signature(found).return_annotation)
