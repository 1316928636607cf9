"""What is public is written down: a change of it is seen, told to users, and explained on a page."""

import re
from pathlib import Path

import pytest
from public_api import FILE, lines

import hpcoll

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = "".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.md"))


def test_what_is_public_is_as_it_was_written_down() -> None:
    """A change needs a line in CHANGES.md, and where a line goes or changes, a release that warns before it."""
    before, now = FILE.read_text().splitlines(), list(lines())
    told = "python tests/public_api.py writes it down anew; then say in CHANGES.md what is new, or what users must change"
    assert [line for line in before if line not in now] == [], f"gone or changed: {told}"
    assert now == before, told


@pytest.mark.parametrize("name", hpcoll.__all__)
def test_the_reference_names_what_is_public(name: str) -> None:
    assert re.search(rf"\b{name}\b", REFERENCE)


def test_a_change_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A keyword that goes, a default that changes, a name that is new."""

    def changed(function: object, nranks: int = 2) -> None:
        """Stand for another `hpcoll.run`."""

    before = set(lines())
    monkeypatch.setattr(hpcoll, "run", changed, raising=False)
    monkeypatch.setattr(hpcoll, "__all__", [*hpcoll.__all__, "__version__"])
    assert set(lines()) - before == {"hpcoll.run(function, nranks=2)", "hpcoll.__version__"}
    assert len(before - set(lines())) == 1
