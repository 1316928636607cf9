"""Names by numbers: regions of the program, and places where it calls, as records of calls have them."""

import threading
from typing import NamedTuple

from hpcoll.comm.status.call_site import Place, in_words


class Names:
    """Names of this process, numbered from 1 on; 0 has none."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._names: list[object] = [None]
        self._adding = threading.Lock()

    def __len__(self) -> int:
        return len(self._names) - 1

    def number(self, name: object) -> int:
        """Return the number of a name, which is given one at its first use."""
        number = self._numbers.get(name)
        if number is not None:
            return number
        with self._adding:
            if name not in self._numbers:
                self._names.append(name)
                self._numbers[name] = len(self._names) - 1
            return self._numbers[name]

    def name(self, number: int) -> object:
        """Return the name of a number."""
        return self._names[number]


class RegionName(NamedTuple):
    """A name that a program has given to a region, and the number of the region around it."""

    outer: int
    name: str


PLACES = Names()  # of `hpcoll.comm.status.call_site.Place`
REGIONS = Names()  # of `RegionName`


def place_text(number: int) -> str:
    """Return file and line of a place by its number; empty for 0."""
    place: Place = PLACES.name(number)  # type: ignore[assignment]
    return in_words(place) if number else ""


def region_text(number: int) -> str:
    """Return the names of a region by its number, outermost first, joined by ``/``; empty for 0."""
    names = list[str]()
    while number:
        region: RegionName = REGIONS.name(number)  # type: ignore[assignment]
        names.insert(0, region.name)
        number = region.outer
    return "/".join(names)
