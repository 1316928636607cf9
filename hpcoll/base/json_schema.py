"""JSON Schema, as much of it as hpcoll's own formats use: the schema that documents a format is the one by which it is read."""

from collections.abc import Mapping
from typing import Any

from hpcoll.base.errors import ArgumentError
from hpcoll.base.json_fields import refused

Schema = Mapping[str, Any]
KEYWORDS = {
    "type",
    "enum",
    "minimum",
    "maximum",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
    "$ref",
    "$defs",
    "$schema",
    "title",
    "description",
}
_TYPES: dict[str, tuple[type, str]] = {
    "object": (dict, "an object"),
    "array": (list, "a list"),
    "string": (str, "text"),
    "integer": (int, "an integer"),
    "boolean": (bool, "true or false"),
    "null": (type(None), "null"),
}
_Path = tuple[Any, str | int]  # of what holds the value, and its name or number there; () for the whole


def check(content: Any, schema: Schema, most: int) -> None:
    """Check the content of a JSON file; ArgumentError names a field that does not fit, or says that there are over ``most`` values."""
    stack: list[tuple[_Path | tuple[()], Any, Schema]] = [((), content, schema)]
    seen = 0
    while stack:
        path, value, rule = stack.pop()
        seen += 1
        while "$ref" in rule:
            rule = schema["$defs"][rule["$ref"].rpartition("/")[2]]
        if expected := _expected(value, rule):
            raise refused(_where(path), expected, value)
        if type(value) is dict:
            rules = rule["properties"]
            stack.extend(((path, name), item, rules[name]) for name, item in value.items())
        elif type(value) is list:
            first = rule.get("prefixItems", ())
            stack.extend(
                ((path, i), item, first[i] if i < len(first) else rule["items"])
                for i, item in enumerate(value)
            )
        if seen + len(stack) > most:
            raise ArgumentError(f"expected at most {most:,} values, got more")


def _expected(value: Any, rule: Schema) -> str:
    """Return in words what a value should be; empty: it is that."""
    kind = type(value)
    if "enum" in rule:
        fits = any(value == one and kind is type(one) for one in rule["enum"])
        return "" if fits else f"one of {', '.join(map(str, rule['enum']))}"
    names = rule["type"] if isinstance(rule["type"], list) else [rule["type"]]
    if not any(kind is _TYPES[name][0] for name in names):
        return " or ".join(_TYPES[name][1] for name in names)
    if kind is int and not rule.get("minimum", value) <= value <= rule.get("maximum", value):
        return f"an integer from {rule['minimum']} to {rule['maximum']}"
    if kind is list:
        least, most = rule.get("minItems", 0), rule.get("maxItems", len(value))
        return (
            ""
            if least <= len(value) <= most
            else f"{least} items"
            if least == most
            else f"{least} to {most} items"
        )
    if kind is dict:
        missing = [name for name in rule.get("required", ()) if name not in value]
        unknown = [name for name in value if name not in rule["properties"]]
        return (
            f"a field {missing[0]}"
            if missing
            else f"no fields but {', '.join(rule['properties'])}"
            if unknown
            else ""
        )
    return ""


def _where(path: Any) -> str:
    text = ""
    while path:
        path, name = path
        text = (f"[{name}]" if isinstance(name, int) else f".{name}") + text
    return text.removeprefix(".")
