"""Hooks of MkDocs (mkdocs.yml): what the site has beside the pages in docs/, and what no page of it may have.

Pages from elsewhere in the checkout get a place on the site. Links are those of the checkout, so that pages can be read there too. The
options of commands are read from their parsers, and methods that are made as a module is loaded from their class. A page that loads
anything from another host, and a public name or a command that the reference does not have, are warnings, which are errors here.
"""

import inspect
import posixpath
import re
from argparse import SUPPRESS, Action, ArgumentParser
from collections.abc import Iterator
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path

import mpi4py
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = "docs/"
ELSEWHERE = {  # pages of the checkout, and where they are on the site
    "CHANGES.md": "changes.md",
    "SECURITY.md": "reference/reporting.md",
    "examples/README.md": "how_to/examples.md",
    "jobs/README.md": "how_to/jobs.md",
    "tests/README.md": "development/tests.md",
    "tests/cluster/README.md": "development/emulated_hosts.md",
}
LINK = re.compile(r"(\]\()([^)#:\s]+\.(?:md|svg))(#[^)]*)?\)")
MARK = re.compile(r"<!-- (api|methods|options): (.+?) -->", re.S)
LOADED = re.compile(
    r"<(?:script|img|iframe|source|link(?! rel=\"canonical\"))\b[^>]*\b(?:src|href)=\"?(https?:)?//[^>]*>"
)

log = get_plugin_logger(__name__)
mpi4py.rc.initialize = False  # hpcoll is imported, and no rank is started


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Let the header show the version, and the repository where the package's metadata name one."""
    import hpcoll

    metadata = ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    config.site_name = f"hpcoll {hpcoll.__version__}"
    config.repo_url = metadata["metadata"].get("url", config.repo_url)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from elsewhere."""
    for source, target in ELSEWHERE.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links of the checkout into links of the site, and marks into what they stand for."""
    here = page.file.src_uri
    source = next((one for one, target in ELSEWHERE.items() if target == here), DOCS + here)

    def link(match: re.Match[str]) -> str:
        named = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        target = ELSEWHERE.get(named, named.removeprefix(DOCS))
        return f"{match[1]}{posixpath.relpath(target, posixpath.dirname(here) or '.')}{match[3] or ''})"

    made = {"api": members, "methods": methods_of, "options": options_of}
    return MARK.sub(lambda match: made[match[1]](match[2]), LINK.sub(link, markdown))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse what the reader's browser would fetch elsewhere."""
    for match in LOADED.finditer(output):
        log.warning("%s loads from another host: %s", page.file.src_uri, match[0])
    return output


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a reference without some public name or command."""
    from hpcoll.cli import COMMANDS

    pages = "".join(page.read_text() for page in Path(config.site_dir, "reference").glob("*.html"))
    names = public_names() | {f"hpcoll-{command.name}" for command in COMMANDS}
    for name in sorted(names - set(re.findall(r'id="(hpcoll[-.][-\w.]+)"', pages))):
        log.warning("the reference lacks %s", name)


def public_names() -> set[str]:
    """Return the names in hpcoll, with the methods that its classes have of their own."""
    import hpcoll

    def names(name: str) -> Iterator[str]:
        yield name
        kinds = getattr(getattr(hpcoll, name), "__mro__", ())
        # whose methods are not told again
        base = next((kind for kind in kinds[1:] if kind.__name__ in hpcoll.__all__), object)
        for kind in kinds:
            if kind.__module__.startswith("hpcoll.") and kind not in base.__mro__:
                yield from (
                    f"{name}.{one}"
                    for one, method in vars(kind).items()
                    if one[0] != "_" and inspect.isroutine(method)
                )

    return {f"hpcoll.{one}" for name in hpcoll.__all__ for one in names(name)}


def members(words: str) -> str:
    """Return members as mkdocstrings shows them, by the class, with ``=`` and others that have the same members, and their names."""
    owners, *names = words.split()
    owner, *alike = owners.split("=")
    anchors = {name: "".join(f'<a id="{other}.{name}"></a>' for other in alike) for name in names}
    return "\n".join(
        f"{anchors[name]}\n\n::: {owner}.{name}\n    options:\n      heading_level: 3\n" for name in names
    )


def methods_of(paths: str) -> str:
    """Return the methods of public classes that another one gets once it is made, as a table."""
    *alike, last = paths.split()
    shown, path = last.split("=")
    module, _, name = path.rpartition(".")
    owner = getattr(import_module(module), name)
    body = inspect.getsource(owner)
    methods = {
        one: method
        for one, method in vars(owner).items()
        if hasattr(method, "__wrapped__") and f"    {one} = " not in body
    }
    anchors = {one: "".join(f'<a id="{owner}.{one}"></a>' for owner in (*alike, shown)) for one in methods}
    rows = [f"| {anchors[one]}`{one}` | {inspect.getdoc(method)} |" for one, method in methods.items()]
    return "\n".join(["| method | does |", "|---|---|", *rows])


def options_of(name: str) -> str:
    """Return what a command takes, as a usage line and tables."""
    from hpcoll.base.disk_cache import folder
    from hpcoll.cli import _parser

    parser: ArgumentParser = _parser([name])._subparsers._group_actions[0].choices[name]
    taken = [action for action in parser._actions if action.help != SUPPRESS]
    rows = [
        f"| {cell(words(action))} | {escaped(parser._get_formatter()._expand_help(action))} |"
        for action in taken
    ]
    epilog = (parser.epilog or "").replace(str(folder()), "~/.cache/hpcoll")
    parts = [
        f"```text\n{parser.format_usage()}```",
        "\n".join(["| argument | meaning |", "|---|---|", *rows]),
        escaped(epilog).replace("\n", "\n\n"),
    ]
    return "\n\n".join(parts)


def words(action: Action) -> str:
    """Return an argument as it is typed."""
    value = action.metavar or (
        "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    )
    return (
        ", ".join(action.option_strings) + (f" {value}" if action.nargs != 0 else "")
        if action.option_strings
        else str(value)
    )


def cell(text: str) -> str:
    """Return code in a cell of a table."""
    return f"`{text}`".replace("|", "\\|")


def escaped(text: str) -> str:
    """Return plain text as Markdown that shows it, in a cell too."""
    return re.sub(r"([\\`*_<>|\[\]])", r"\\\1", text)
