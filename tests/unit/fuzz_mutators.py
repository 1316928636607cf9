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
    " ",
    "x" * 100_000,
    _CONTROLS,
    "\x1b[2J",
    "²",
    "٣",
    "-0",
    "1e999",
    "nan",
    "$\\frac{$",
    "%s%n",
    "../../etc",
    "\n" * 9,
    "a=b",
]
_HUGE = [30_000_000, 2**31 - 1, 2**31, 2**62, 2**63 - 1, 2**63, 10**30, 10**400]
_NUMBERS: list[Any] = [
    *_HUGE,
    0,
    -1,
    1,
    2**53 + 1,
    -(2**31),
    -(2**63),
    0.5,
    -0.0,
    1e-320,
    1e15,
    1e300,
    -1e300,
    float("nan"),
    float("inf"),
    -float("inf"),
]


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


def _flip(text: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(text) + 1)
    return text[:at] + bytes([(text[at] if at < len(text) else 0) ^ 1 << dice.randrange(8)]) + text[at + 1 :]


def _overwrite(text: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(text) + 1)
    return (
        text[:at]
        + dice.choice([b"\xff", b"\x00", b'"', b"[", b"}", b"-", b"9", b"\x1b", b"e"])
        + text[at + 1 :]
    )


def _delete(text: bytes, dice: random.Random) -> bytes:
    start, end = sorted(dice.randrange(len(text) + 1) for _ in range(2))
    return text[:start] + text[min(end, start + 200) :]


def _duplicate(text: bytes, dice: random.Random) -> bytes:
    start, end = sorted(dice.randrange(len(text) + 1) for _ in range(2))
    return text[:end] + text[start:end] * dice.choice([1, 1, 2, 50]) + text[end:]


def _truncate(text: bytes, dice: random.Random) -> bytes:
    return text[: dice.randrange(len(text) + 1)]


def _splice(text: bytes, dice: random.Random) -> bytes:
    return text[: dice.randrange(len(text) + 1)] + text[dice.randrange(len(text) + 1) :]


_BYTES = (_flip, _flip, _overwrite, _overwrite, _delete, _duplicate, _truncate, _splice)


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Each object or list with each of its keys."""
    if isinstance(tree, dict | list):
        for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
            yield tree, key
            yield from _places(tree[key])


def _on_a_walk(tree: Any, dice: random.Random) -> tuple[Any, Any]:
    """Return one of them, more often one that is near the root: of many alike far from it each says little."""
    while True:
        key = dice.choice(list(tree)) if isinstance(tree, dict) else dice.randrange(len(tree))
        if not (isinstance(tree[key], dict | list) and tree[key]) or dice.random() < 0.5:
            return tree, key
        tree = tree[key]


def _changed(tree: Any, dice: random.Random) -> Any:
    """A tree with one change; it may be the same object."""
    places = list(_places(tree))
    if not places or dice.random() < 0.01:
        return _value(dice)
    inside, key = _on_a_walk(tree, dice) if dice.random() < 0.5 else dice.choice(places)
    value, kind = inside[key], dice.randrange(10)
    if kind < 6:
        inside[key] = _value(dice) if kind < 2 else _alike(value, dice)
    elif kind == 6:
        del inside[key]
    elif kind == 7 and isinstance(inside, dict):
        inside[Key(key) if dice.random() < 0.5 else dice.choice(_TEXTS)] = copy.deepcopy(value)
    elif kind == 7:
        inside.append(copy.deepcopy(value))
    elif kind == 8:
        inside[key] = dice.choice([[value], {"a": value}, str(value)])
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


def _alike(value: Any, dice: random.Random) -> Any:
    """Another one of the same type, which is looked at more closely than one of another."""
    if isinstance(value, str):
        return dice.choice([dice.choice(_TEXTS), value + _CONTROLS, value + dice.choice(_TEXTS), value[::2]])
    if isinstance(value, int | float) and not isinstance(value, bool):
        return dice.choice(
            [
                dice.choice(_HUGE),
                dice.choice(_NUMBERS),
                value + dice.choice([1, -1]),
                -value,
                value * 1000,
                value // 2,
            ]
        )
    return _value(dice)


def _value(dice: random.Random) -> Any:
    kind = dice.randrange(5)
    if kind == 0:
        return dice.choice([None, True, False, [], {}, [[]], [0] * 1000])
    if kind == 1:
        return dice.choice(_TEXTS)
    if kind == 2:
        return f"@@{dice.choice([*_WRITTEN])}:{dice.choice([20, 400, 900, 960, 980, 990, 1000, 5000, 100_000])}@@"
    return dice.choice(_NUMBERS)
