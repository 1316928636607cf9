"""Items of a lane that works on arrays in GPU memory."""

from collections.abc import Hashable
from typing import Any, ClassVar

from hpcoll.base.sizes import largest
from hpcoll.kernels import MAX_SOURCES
from hpcoll.runtime.program.items import Item, Items
from hpcoll.runtime.program.opcodes import Code
from hpcoll.runtime.program.spans import LANDING, Pieces, Span, names_of


class GpuItems(Items):
    """Items whose copies and reductions a GPU makes: kernels take a limited number of sources, and copies are kept."""

    boundary: ClassVar[int] = 256
    on_gpu: ClassVar[bool] = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._copies: dict[tuple[Hashable, ...], tuple[Pieces, int]] = {}  # chunks, and for what -> copy, and items up to then
        self._written: dict[Hashable, int] = {}  # chunk -> items up to the last that wrote it
        self._partial: int | None = None  # landing slot of partial results

    def append(self, item: Item) -> None:
        super().append(item)
        self._written.update(dict.fromkeys(item.writes, len(self.list)))

    def packed(self, pieces: Pieces, *, pinned: bool = False, lent: bool = False) -> Pieces:
        """As in `Items`; one copy as often as the chunks do not change."""
        key = (lent, *names_of(pieces))
        copy, since = self._copies.get(key, ([], 0))
        if not copy or any(self._written.get(name, 0) > since for name, _ in pieces):
            copy = super().packed(pieces, pinned=pinned)
            self._copies[key] = copy, len(self.list)
        return copy

    def _operate(self, code: Code, spans: list[Span], names: list[list[Hashable]]) -> None:
        """Long folds in several reductions, left to right; the destination, which may be a source, is written by the last one."""
        while len(spans) > 1 + MAX_SOURCES:
            if self._partial is None:
                self._partial = self._new_slot(pinned=False)
            self.landings[self._partial] = largest(self.landings[self._partial], spans[0].nbytes)
            partial = Span(LANDING + self._partial, 0, spans[0].nbytes)
            name: list[Hashable] = [("landing", self._partial)]
            super()._operate(code, [partial, *spans[1 : 1 + MAX_SOURCES]], [name, *names[1 : 1 + MAX_SOURCES]])
            spans, names = [spans[0], partial, *spans[1 + MAX_SOURCES :]], [names[0], name, *names[1 + MAX_SOURCES :]]
        super()._operate(code, spans, names)
