"""Inputs that are nearly right: samples changed in their bytes, or in the tree of values that they are the text of. Seeded."""

import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from xml.etree import ElementTree

MOST_ITEMS, MOST_NBYTES = 20_000, 2_000_000  # of a list that is made longer
_RAW = re.compile(r'"?@@(\w+):(\d+)@@"?')  # stands for what Python's own writer cannot write
_WRITTEN: dict[str, Callable[[int], str]] = {
    "digits": lambda n: "9" * n,
    "deep": lambda n: "[" * n + "]" * n,
    "deeper": lambda n: '{"a":' * n + "0" + "}" * n,
}
_CONTROLS = "\x00\x07\x1b]0;x\x07\x1b[31m\x7f\x85\x9b31m\u202e\u2066\u200b\u2028\ud800"
_TEXTS = [
    "",
    "x" * 100_000,
    _CONTROLS,
    "²",
    "٣",
    "1e999",
    "nan",
    "$\\frac{$",
    "%s%n",
    "../../etc",
    "\n" * 9,
    "a=b",
]
_TEXTS += [f"@@{kind}:{n}@@" for kind in _WRITTEN for n in (20, 400, 990, 5000, 100_000)]
_NUMBERS: list[Any] = [0, -1, 1, 30_000_000, 2**31, 2**53 + 1, 2**63, -(2**63), 10**30, 10**400]
_NUMBERS += [0.5, -0.0, 1e-320, 1e300, float("nan"), float("inf"), -float("inf")]
_VALUES: list[Any] = [None, True, False, [], {}, [[]], [0] * 1000, *_TEXTS, *_NUMBERS]


class Key(str):
    """A key that an object may have twice."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class Form(NamedTuple):
    """A parser of samples into trees of objects, lists and values, and a writer of such trees."""

    load: Callable[[bytes], Any]
    dump: Callable[[Any], bytes]


def _written(text: str) -> str:
    return _RAW.sub(lambda found: _WRITTEN[found[1]](int(found[2])), text, count=3)


def _json_text(tree: Any) -> bytes:
    return _written(json.dumps(tree)).encode()


def _variables(text: bytes) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.decode(errors="surrogateescape").split("\0") if line)
    return {name: value for name, _, value in pairs}


def _variables_text(tree: Any) -> bytes:
    pairs = (
        (f"{name}={_written(str(value))}" for name, value in tree.items())
        if isinstance(tree, dict)
        else [str(tree)]
    )
    return "\0".join(pair.replace("\0", "") for pair in pairs).encode(errors="surrogatepass")


def _xml_tree(text: bytes) -> Any:
    def tree(element: ElementTree.Element) -> Any:
        return {
            "tag": element.tag,
            "attributes": dict(element.attrib),
            "elements": [tree(child) for child in element],
        }

    return tree(ElementTree.fromstring(text))


def _xml_text(tree: Any) -> bytes:
    def text(one: Any) -> str:
        if (
            not isinstance(one, dict)
            or not isinstance(one.get("attributes"), dict)
            or not isinstance(one.get("elements"), list)
        ):
            return str(one)
        attributes = " ".join(f'{key}="{value}"' for key, value in one["attributes"].items())
        return f"<{one.get('tag')} {attributes}>{''.join(map(text, one['elements']))}</{one.get('tag')}>"

    return _written(text(tree)).encode(errors="surrogatepass")


JSON = Form(json.loads, _json_text)
XML = Form(_xml_tree, _xml_text)
# as the system keeps an environment: NAME=value, with a NUL between
VARIABLES = Form(_variables, _variables_text)


def mutated(sample: bytes, form: Form, dice: random.Random) -> bytes:
    """A sample with one to four changes, of its bytes or of its tree."""
    changes = dice.choice([1, 1, 1, 2, 3, 4])
    if dice.random() < 0.3:
        for _ in range(changes):
            sample = dice.choice(_BYTES)(sample, dice)
        return sample
    tree = form.load(sample)
    for _ in range(changes):
        tree = _changed(tree, dice)
    if dice.random() < 0.1:
        _lengthen(tree, dice)
    return form.dump(tree)


def _delete(text: bytes, dice: random.Random) -> bytes:
    start, end = sorted(dice.randrange(len(text) + 1) for _ in range(2))
    return text[:start] + text[min(end, start + 200) :]


def _duplicate(text: bytes, dice: random.Random) -> bytes:
    start, end = sorted(dice.randrange(len(text) + 1) for _ in range(2))
    return text[:end] + text[start:end] * dice.choice([1, 2, 50]) + text[end:]


def _overwrite(text: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(text) + 1)
    return text[:at] + bytes([dice.randrange(256)]) + text[at + 1 :]


def _truncate(text: bytes, dice: random.Random) -> bytes:
    return text[: dice.randrange(len(text) + 1)]


_BYTES = (_overwrite, _overwrite, _delete, _duplicate, _truncate)


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Each object or list with each of its keys."""
    if isinstance(tree, dict | list):
        for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
            yield tree, key
            yield from _places(tree[key])


def _changed(tree: Any, dice: random.Random) -> Any:
    """A tree with one change; it may be the same object."""
    places = list(_places(tree))
    if not places or dice.random() < 0.01:
        return dice.choice(_VALUES)
    inside, key = dice.choice(places)
    value, kind = inside[key], dice.randrange(8)
    if kind < 4:
        inside[key] = dice.choice(_alike(value))
    elif kind == 4:
        del inside[key]
    elif kind == 5 and isinstance(inside, dict):
        inside[Key(key)] = copy.deepcopy(value)
    elif kind == 6:
        inside[key] = [value]
    else:
        other, place = dice.choice(places)
        inside[key] = copy.deepcopy(other[place])
    return tree


def _lengthen(tree: Any, dice: random.Random) -> None:
    """Make a list longer, once: two that are in each other would have no end."""
    lists = [inside for inside, _ in _places(tree) if isinstance(inside, list)]
    if lists:
        longer = dice.choice(lists)
        longer *= min(MOST_ITEMS // len(longer), MOST_NBYTES // len(json.dumps(longer)))


def _alike(value: Any) -> list[Any]:
    """Return values that may stand in the place of one: mostly of its type, which are looked at more closely than others."""
    if isinstance(value, str):
        return [*_TEXTS, value + _CONTROLS, value[::2]]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [*_NUMBERS, value + 1, value - 1, -value, value * 1000, value // 2]
    return _VALUES
