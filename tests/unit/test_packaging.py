"""setup.cfg lists the packages that the folders hold."""

import configparser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_package_is_listed_once() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = config["options"]["packages"].split()
    found = [".".join(init.parent.relative_to(ROOT).parts) for init in (ROOT / "hpcoll").rglob("__init__.py")]
    assert sorted(listed) == sorted([*found, "hpcoll.kernels"])


def test_kernels_are_installed_inside_hpcoll() -> None:
    import hpcoll.kernels

    assert Path(hpcoll.kernels.__file__).parent == ROOT / "kernels"


def test_what_runs_on_one_rank_alone_is_in_the_short_run() -> None:
    """On one rank the short run takes smoke cases only: a file that starts jobs of its own there, and is none, would never run."""
    files = {path.name: path.read_text() for path in (ROOT / "tests/mpi").glob("test_*.py")}
    alone = {name: text for name, text in files.items() if "enough in the run on one rank" in text}
    assert alone
    assert [name for name, text in alone.items() if "pytest.mark.smoke" not in text] == []
