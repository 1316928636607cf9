"""Hooks: events, and the functions that are called at them."""

from collections.abc import Callable
from typing import Any, Generic, ParamSpec

P = ParamSpec("P")


class Hook(Generic[P]):
    """The hook of an event: calling it calls its functions, in the order in which they came.

    What a function raises is raised, and those behind it are not called.

    Args:
        changed: Called whenever its functions have changed.

    Attributes:
        functions: Called with what there is to say; another tuple whenever one comes or goes, so any thread may read it.
    """

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self.functions: tuple[Callable[P, object], ...] = ()
        self._changed = changed

    def __call__(self, *told: P.args, **named: P.kwargs) -> None:
        """Call its functions."""
        for function in self.functions:
            function(*told, **named)

    def become(self, *functions: Callable[P, object]) -> None:
        """Call these functions from now on."""
        self.functions = functions
        self._changed()


class HookHandle:
    """The handle of functions that are called at hooks, until `remove`; a context manager, too.

    Args:
        parts: Hooks, each with a function that is called at it from now on.
    """

    def __init__(self, *parts: tuple[Hook[Any], Callable[..., object]]) -> None:
        self._parts = parts
        for hook, function in parts:
            hook.become(*hook.functions, function)

    def remove(self) -> None:
        """Call them no more; it may be said again."""
        parts, self._parts = self._parts, ()
        for hook, function in parts:
            left = list(hook.functions)
            left.remove(function)
            hook.become(*left)

    def __enter__(self) -> "HookHandle":
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()
