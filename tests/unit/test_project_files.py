"""Files beside the package say what the package says; jobs/release.sh compares them with their schemas."""

import re
import subprocess
import tarfile
from configparser import ConfigParser
from io import BytesIO
from pathlib import Path

import pytest
import release
import yaml
from check_recipes import CHECKS
from packaging.requirements import Requirement

import hpcoll

ROOT = Path(__file__).resolve().parents[2]


def test_the_citation_is_of_this_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == hpcoll.__version__


def test_the_version_stands_in_one_place() -> None:
    """Beside it, the citation has it, and the names of files on pages; both are compared here."""
    assert "version = attr: hpcoll.__version__\n" in (ROOT / "setup.cfg").read_text()
    pages = "".join(page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    assert set(re.findall(r"hpcoll-([\d.]+)-py3", pages)) == {hpcoll.__version__}


@pytest.mark.parametrize("file", [".github/workflows/checks.yml", ".readthedocs.yaml"])
def test_what_other_sites_run_is_there(file: str) -> None:
    programs = set(re.findall(r"(?:\.ci|jobs|tests)/[\w.]+", (ROOT / file).read_text()))
    assert programs
    assert [one for one in programs if not (ROOT / one).is_file()] == []


def test_an_archive_is_the_same_whoever_packs_it(tmp_path: Path) -> None:
    """Other times, owners, order and rights of the same files."""
    packed = []
    for names, owner, mode in ((("a", "b"), 0, 0o600), (("b", "a"), 1000, 0o664)):
        made = BytesIO()
        with tarfile.open(fileobj=made, mode="w:gz") as archive:
            for name in names:
                member = tarfile.TarInfo(name)
                member.size, member.mtime, member.uid, member.mode = 1, owner, owner, mode
                archive.addfile(member, BytesIO(name.encode()))
        packed.append(made.getvalue())
    assert packed[0] != packed[1]
    first, second = (release.settled(one, 1_700_000_000) for one in packed)
    assert first == second
    with tarfile.open(fileobj=BytesIO(first)) as archive:
        assert [(one.name, one.mtime, one.mode) for one in archive] == [
            ("a", 1_700_000_000, 0o644),
            ("b", 1_700_000_000, 0o644),
        ]


def test_a_release_is_of_a_commit() -> None:
    """The time in its files is the commit's: nothing else may depend on when it is made."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("no checkout of git")
    assert int(release.commit_time()) > 1_600_000_000


def needed() -> dict[str, str]:
    """Return the packages that hpcoll needs, and the oldest release of each."""
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    found = [Requirement(line) for line in config["options"]["install_requires"].split()]
    return {one.name: str(one.specifier).removeprefix(">=") for one in found}


def test_recipes_ask_for_what_the_package_needs() -> None:
    conda = (ROOT / "packaging/conda/recipe.yaml").read_text()
    spack = (ROOT / "packaging/spack/py_hpcoll/package.py").read_text()
    assert len(needed()) == 4
    for name, oldest in needed().items():
        assert f"    - {name} >={oldest}\n" in conda
        assert f'depends_on("py-{name.replace("_", "-")}@{oldest}:")' in spack


@pytest.mark.parametrize("recipe", CHECKS)
def test_recipes_are_filled_in_when_a_release_is_made(recipe: str) -> None:
    """None has a version or a sum of its own."""
    text = (ROOT / "packaging" / recipe).read_text()
    assert hpcoll.__version__ not in text
    assert not re.search(r"[0-9a-f]{64}", text)


def test_every_recipe_is_checked() -> None:
    files = {
        str(one.relative_to(ROOT / "packaging")) for one in (ROOT / "packaging").rglob("*.*") if one.is_file()
    }
    assert {one for one in files if "__pycache__" not in one} <= {*CHECKS}
