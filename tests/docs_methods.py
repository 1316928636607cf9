"""Extension of griffe (mkdocs.yml): methods that modules make when they are imported, with the docstrings that these have then."""

import inspect
from importlib import import_module
from typing import Any

import griffe
import mpi4py

MAKERS = (
    "hpcoll.comm.methods.nonblocking",
    "hpcoll.comm.methods.point_to_point",
    "hpcoll.comm.methods.blocking_neighbours",
)
INFO = griffe.Parameter(
    "info", annotation="MPI.Info", kind=griffe.ParameterKind.positional_or_keyword, default="MPI.INFO_NULL"
)


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
                if isinstance(member, griffe.Attribute):
                    member = griffe.Function(
                        name, parameters=self._parameters(mod, name, found), returns=self._returns(found)
                    )
                    owner.set_member(name, member)
                member.docstring = griffe.Docstring(inspect.getdoc(found) or "", parent=member, parser=parser)

    @staticmethod
    def _parameters(mod: griffe.Module, name: str, found: Any) -> griffe.Parameters:
        """Return a method's parameters; of a persistent one with the defaults that the one in flight spells."""
        if name.endswith("_init") and "NonBlocking" in mod.members:
            given = list(mod["NonBlocking"][f"I{name.removesuffix('_init').lower()}"].parameters)
            at = sum(one.kind is griffe.ParameterKind.positional_or_keyword for one in given)
            return griffe.Parameters(*given[:at], INFO, *given[at:])
        parameters = inspect.signature(found).parameters.values()
        return griffe.Parameters(
            *(
                griffe.Parameter(
                    one.name,
                    annotation=None
                    if one.annotation is one.empty
                    else inspect.formatannotation(one.annotation),
                    kind=griffe.ParameterKind(one.kind.description),
                    default=None if one.default is one.empty else repr(one.default),
                )
                for one in parameters
            )
        )

    @staticmethod
    def _returns(found: Any) -> str:
        """Return the annotation of a method's result."""
        return inspect.formatannotation(inspect.signature(found).return_annotation).replace("mpi4py.", "")
