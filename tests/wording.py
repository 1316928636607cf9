"""The words of this project, as far as a program can judge them: how docstrings begin, and how long the sentences of the pages are.

A summary line says what a thing is or does: "Return ...", "The ring of ...". A sentence on a page has one idea.

  python tests/wording.py               all of it
  python tests/wording.py docs          the sentences of README, CHANGES and docs
  python tests/wording.py docstrings    the first words of docstrings
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", ROOT / "CHANGES.md")
FOLDERS = ("hpcoll", "jobs", "examples", "benchmarks")
# first words
RIDDLES = {
    "What",
    "Whether",
    "One",
    "How",
    "Those",
    "Who",
    "Which",
    "Where",
    "That",
    "It",
    "Its",
    "Of",
    "They",
    "As",
    "If",
}
# words of a long sentence, of the longest, and the share of long ones on all pages together
LONG, LONGEST, SHARE = (
    35,
    50,
    0.03,
)
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\d*\[(]|code\b|hpcoll\b)")  # its end


def riddles(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines and first lines of docstrings whose first word says neither what a thing is nor what it does."""
    for node in ast.walk(ast.parse(source)):
        text = (
            ast.get_docstring(node) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) else None
        )
        if text and text.split()[0].strip("`,.:;") in RIDDLES:
            yield getattr(node, "lineno", 1), text.splitlines()[0]


def sentences(page: str) -> Iterator[str]:
    """Yield the sentences of a page in Markdown; code, tables, headings and comments are none."""
    page = re.sub(
        r"<!--.*?-->|^---\n.*?^---\n",
        "",
        re.sub(r"^([ \t]*)```.*?^\1```", "", page, flags=re.S | re.M),
        flags=re.S | re.M,
    )
    lines = [
        "" if line.lstrip().startswith(("|", "#", "!!!", "???", "===")) else line
        for line in page.splitlines()
    ]
    page = re.sub(r"^\s*([-*]|\d+\.)\s", "\n\n", "\n".join(lines), flags=re.M)
    for block in re.split(r"\n\s*\n", re.sub(r"`[^`]*`", "code", page)):
        yield from filter(None, SENTENCE.split(" ".join(block.split())))


def nwords(sentence: str) -> int:
    """Return how many words a sentence has; numbers and signs are none."""
    return len(re.findall(r"[A-Za-z][\w'-]*", re.sub(r"\]\([^)]*\)", "]", sentence)))


def problems(pages: Mapping[str, str], sources: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong in pages and modules, by their names, a line each."""
    for file, source in sources.items():
        yield from (f"{file}:{line}: {text}" for line, text in riddles(source))
    found = [(nwords(one), one, page) for page, text in pages.items() for one in sentences(text)]
    long = [one for one in found if one[0] > LONG]
    yield from (
        f"{page}: {words} words, at most {LONGEST}: {text[:100]}"
        for words, text, page in long
        if words > LONGEST
    )
    if len(long) > SHARE * len(found):
        yield f"{len(long)} of {len(found)} sentences on the pages have more than {LONG} words, at most {SHARE:.0%} may"
        yield from (
            f"  {page}: {words} words: {text[:100]}" for words, text, page in sorted(long, reverse=True)
        )


def main(parts: list[str]) -> int:
    """Print what is wrong in these parts, or in all, and return whether anything is."""
    sources = (
        [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
        if parts != ["docs"]
        else []
    )
    pages = [*PAGES, *sorted((ROOT / "docs").rglob("*.md"))] if parts != ["docstrings"] else []
    found = list(
        problems(
            *({str(file.relative_to(ROOT)): file.read_text() for file in files} for files in (pages, sources))
        )
    )
    print("\n".join(found) or "nothing to say")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
