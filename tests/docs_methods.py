"""Extension of griffe (mkdocs.yml): the methods that `hpcoll.comm.nonblocking` makes of others when it is imported."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import griffe
import mpi4py

MODULE = "hpcoll.comm.nonblocking"
INFO = griffe.Parameter("info", annotation="MPI.Info", kind=griffe.ParameterKind.positional_or_keyword, default="MPI.INFO_NULL")


class MadeMethods(griffe.Extension):
    """Gives methods the docstrings that they have at run time, and persistent ones the parameters of those in flight."""

    def on_module_members(self, *, mod: griffe.Module, **_: Any) -> None:
        """Complete the classes of `MODULE`."""
        if mod.path != MODULE:
            return
        mpi4py.rc.initialize = False
        made, (begun, planned) = import_module(MODULE), (mod["NonBlocking"], mod["PersistentCollectives"])
        for name, member in [*begun.members.items(), *planned.members.items()]:
            if isinstance(member, griffe.Attribute):
                given = list(begun[f"I{name.removesuffix('_init').lower()}"].parameters)
                at = sum(one.kind is griffe.ParameterKind.positional_or_keyword for one in given)
                member = griffe.Function(name, parameters=griffe.Parameters(*given[:at], INFO, *given[at:]), returns="MPI.Prequest")
                planned.set_member(name, member)
            text = getattr(getattr(made, member.parent.name), name).__doc__
            member.docstring = griffe.Docstring(text, parent=member, parser=mod.docstring.parser)
