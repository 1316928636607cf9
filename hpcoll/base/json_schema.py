"""JSON Schema, as much of it as hpcoll's own formats use: the schema that documents a format is the one by which it is read."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcoll.base.errors import ArgumentError
from hpcoll.base.json_fields import refused
from hpcoll.base.text import printable, quoted

Schema = Mapping[str, Any]
KEYWORDS = {
    "type", "enum", "minimum", "maximum", "properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems",
    "$ref", "$defs", "$schema", "title", "description",
}  # fmt: skip
_TYPES: dict[str, tuple[type, str]] = {
    "object": (dict, "an object"), "array": (list, "a list"), "string": (str, "text"), "integer": (int, "an integer"),
    "boolean": (bool, "true or false"), "null": (type(None), "null"),
}  # fmt: skip


def check(content: Any, schema: Schema) -> None:
    """Check the content of a JSON file; ArgumentError names the first field that does not fit, what was expected there, and what is."""
    stack = [("", content, schema)]
    while stack:
        where, value, rule = stack.pop()
        while "$ref" in rule:
            rule = schema["$defs"][rule["$ref"].rpartition("/")[2]]
        _check_value(where, value, rule)
        if isinstance(value, dict):
            stack.extend(_members(where, value, rule))
        elif isinstance(value, list):
            first = rule.get("prefixItems", ())
            stack.extend((f"{where}[{i}]", item, first[i] if i < len(first) else rule["items"]) for i, item in enumerate(value))


def _check_value(where: str, value: Any, rule: Schema) -> None:
    if "enum" in rule:
        if not any(value == one and type(value) is type(one) for one in rule["enum"]):
            raise refused(where, f"one of {', '.join(map(str, rule['enum']))}", value)
        return
    names = rule["type"] if isinstance(rule["type"], list) else [rule["type"]]
    if type(value) not in [_TYPES[name][0] for name in names]:
        raise refused(where, " or ".join(_TYPES[name][1] for name in names), value)
    if isinstance(value, int) and not rule.get("minimum", value) <= value <= rule.get("maximum", value):
        raise refused(where, f"an integer from {rule.get('minimum', '...')} to {rule.get('maximum', '...')}", value)
    if isinstance(value, list):
        least, most = rule.get("minItems", 0), rule.get("maxItems", len(value))
        if not least <= len(value) <= most:
            raise refused(where, f"{least} items" if least == most else f"{least} to {most} items", value)


def _members(where: str, value: dict[str, Any], rule: Schema) -> Iterator[tuple[str, Any, Schema]]:
    rules: Mapping[str, Schema] = rule["properties"]
    missing: Sequence[str] = [name for name in rule.get("required", ()) if name not in value]
    if missing:
        raise refused(where, f"a field {missing[0]}", value)
    for name, item in value.items():
        if name not in rules:
            raise ArgumentError(
                f"field {printable(f'{where}.{name}' if where else name)}: expected one of {', '.join(rules)}, got {quoted(name)}"
            )
        yield f"{where}.{name}" if where else name, item, rules[name]
