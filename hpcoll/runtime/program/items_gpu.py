"""Items of a lane that works on arrays in GPU memory."""

from collections.abc import Hashable
from typing import Any, ClassVar

from hpcoll.base.sizes import largest
from hpcoll.kernels import MAX_DESTINATIONS, MAX_SOURCES
from hpcoll.runtime.program.items import Item, Items
from hpcoll.runtime.program.opcodes import Code
from hpcoll.runtime.program.spans import LANDING, Pieces, Span, names_of


class GpuItems(Items):
    """Items whose copies and reductions a GPU makes: kernels take a limited number of sources, and copies are kept.

    Acknowledgements, for which the host waits, are put off until this rank hands something out, waits for an acknowledgement itself, or
    awaits another message of the same peer: then one wait does for all.
    """

    boundary: ClassVar[int] = 256
    on_gpu: ClassVar[bool] = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._copies: dict[tuple[Hashable, ...], tuple[Pieces, int]] = {}  # chunks, and for what -> copy, and items up to then
        self._written: dict[Hashable, int] = {}  # chunk -> items up to the last that wrote it
        self._partial: int | None = None  # landing slot of partial results
        self._used: list[tuple[int, int]] = []  # messages that were used and not yet acknowledged
        self._in_place: set[Hashable] = set()  # chunks that peers work on in place

    def append(self, item: Item) -> None:
        hands_out = item.peer >= 0 and item.code not in (Code.ACK, Code.AWAIT)
        if self._used and (hands_out or self._in_place.intersection(item.writes)):
            self._acknowledge_used()
        self._in_place.update((*item.reads, *item.writes) if item.in_place else ())
        super().append(item)
        self._written.update(dict.fromkeys(item.writes, len(self.list)))

    def _message_slot(self, peer: int) -> int:
        if any(peer == other for _, other in self._used):
            self._acknowledge_used()
        return max((slot for slot, _ in self._used + self._unused), default=-1) + 1

    def acknowledge(self) -> None:
        self._used += self._unused
        self._unused = []

    def end(self) -> None:
        self._acknowledge_used()

    def _acknowledge_used(self) -> None:
        used, self._used = self._used, []
        self._say_used(used)

    def packed(self, pieces: Pieces, *, pinned: bool = False, lent: bool = False) -> Pieces:
        """As in `Items`; one copy as often as the chunks do not change."""
        key = (lent, *names_of(pieces))
        copy, since = self._copies.get(key, ([], 0))
        if not copy or any(self._written.get(name, 0) > since for name, _ in pieces):
            copy = super().packed(pieces, pinned=pinned)
            self._copies[key] = copy, len(self.list)
        return copy

    def _operate(
        self, code: Code, spans: list[Span], names: list[list[Hashable]], further: list[Span], written: list[list[Hashable]]
    ) -> None:  # fmt: skip
        """Long folds in several reductions, left to right; the destinations, which may be sources, are written by the last one.

        Those that are too many for it get copies.
        """
        while len(spans) > 1 + MAX_SOURCES:
            if self._partial is None:
                self._partial = self._new_slot(pinned=False)
            self.landings[self._partial] = largest(self.landings[self._partial], spans[0].nbytes)
            partial = Span(LANDING + self._partial, 0, spans[0].nbytes)
            name: list[Hashable] = [("landing", self._partial)]
            super()._operate(code, [partial, *spans[1 : 1 + MAX_SOURCES]], [name, *names[1 : 1 + MAX_SOURCES]], [], [])
            spans, names = [spans[0], partial, *spans[1 + MAX_SOURCES :]], [names[0], name, *names[1 + MAX_SOURCES :]]
        most = MAX_DESTINATIONS - 1
        super()._operate(code, spans, names, further[:most], written[:most])
        for span, theirs in zip(further[most:], written[most:], strict=True):
            super()._operate(Code.COPY, [span, spans[0]], [theirs, names[0]], [], [])
