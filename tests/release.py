"""A release, made and tried: jobs/release.sh. It publishes nothing.

  jobs/release.sh              makes wheel and sdist twice, checks them, and runs every collective on 2 ranks of every platform
  jobs/release.sh --build      makes and checks them
  jobs/release.sh WORD ...     tries those platforms of tests/platforms.py that have all words

The files are of the commit that is checked out, and the same bytes whenever and wherever they are made of it. The folder ``RELEASE``, or
``build/release``, has them, their SHA-256 sums, the recipes in packaging/ with these, and the table of platforms for
docs/evidence/platforms.md.
"""

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import platforms
from environments import LOCKS, ROOT
from platforms import command

FOLDER = Path(os.environ.get("RELEASE", ROOT / "build" / "release"))
SCHEMAS = {
    "citation-file-format": "CITATION.cff",
    "github-workflows": ".github/workflows/*.yml",
    "github-issue-forms": ".github/ISSUE_TEMPLATE/w*.yml",
    "github-issue-config": ".github/ISSUE_TEMPLATE/config.yml",
    "readthedocs": ".readthedocs.yaml",
}
PYROMA_LEAST = 8  # of 10: the metadata name neither a page nor an address of the project, which has none yet


def commit_time() -> str:
    """Return the time of the commit that is checked out, in seconds."""
    asked = ["git", "log", "-1", "--format=%ct"]
    return subprocess.run(asked, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def tools() -> Path:
    """Return the folder of the programs that make and check, of the releases in the lock file."""
    where, lock = FOLDER / "tools", LOCKS / "release.txt"
    stamp = where / "stamp"
    if not stamp.exists() or stamp.read_text() != lock.read_text():
        command(sys.executable, "-m", "venv", "--clear", where)
        platforms.pip(where / "bin/python", "--require-hashes", "--requirement", lock)
        stamp.write_text(lock.read_text())
    return where / "bin"


def make(bin: Path, target: Path, seconds: str) -> list[Path]:
    """Make wheel and sdist of the commit, in a folder that is nowhere else."""
    with tempfile.TemporaryDirectory(prefix="hpcoll-release-") as folder:
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
        how = {"SOURCE_DATE_EPOCH": seconds, "PYTHONHASHSEED": "0"}
        command(bin / "python", "-m", "build", "--no-isolation", "--outdir", target, folder, **how)
    for sdist in target.glob("*.tar.gz"):
        sdist.write_bytes(settled(sdist.read_bytes(), int(seconds)))
    return sorted(target.iterdir())


def settled(sdist: bytes, seconds: int) -> bytes:
    """Return an archive without what depends on who packed it, where and when: order, times, owners."""
    packed, plain = io.BytesIO(), io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(sdist)) as old,
        tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime, member.pax_headers = seconds, {}
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=seconds) as file:
        file.write(plain.getvalue())
    return packed.getvalue()


def check(bin: Path, files: list[Path]) -> None:
    """Let the tools of Python's packagers judge: metadata and README, what is in the wheel, how complete the metadata are."""
    subprocess.run([bin / "twine", "check", "--strict", *files], check=True)
    wheel = next(one for one in files if one.suffix == ".whl")
    assert wheel.name.endswith("-py3-none-any.whl"), wheel.name
    subprocess.run([bin / "check-wheel-contents", wheel], check=True)
    sdist = next(one for one in files if one.suffix == ".gz")
    subprocess.run([bin / "pyroma", "--min", str(PYROMA_LEAST), "--file", sdist], check=True)


def check_schemas(bin: Path) -> None:
    """Compare the files that forges and other sites read with their schemas."""
    for schema, pattern in SCHEMAS.items():
        files = sorted(ROOT.glob(pattern))
        assert files, pattern
        subprocess.run([bin / "check-jsonschema", "--builtin-schema", f"vendor.{schema}", *files], check=True)


def fill_recipes(files: list[Path], version: str) -> Path:
    """Return the folder of the recipes in packaging/, with the version and the sum of the sdist."""
    sdist = next(one for one in files if one.suffix == ".gz")
    told = {"@VERSION@": version, "@SHA256@": hashlib.sha256(sdist.read_bytes()).hexdigest()}
    where = FOLDER / "packaging" / version
    shutil.rmtree(where.parent, ignore_errors=True)
    for source in (one for one in (ROOT / "packaging").rglob("*") if one.is_file()):
        text = source.read_text()
        for mark, value in told.items():
            text = text.replace(mark, value)
        target = where / source.relative_to(ROOT / "packaging")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return where


def main(words: list[str]) -> int:
    """Make the release, and say where it is; 1 where a platform failed."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    bin, seconds, dist = tools(), commit_time(), FOLDER / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    os.umask(0o022)
    files = make(bin, dist, seconds)
    with tempfile.TemporaryDirectory() as again:
        for one, other in zip(files, make(bin, Path(again), seconds), strict=True):
            assert one.read_bytes() == other.read_bytes(), f"{one.name} is made of other bytes each time"
    print(f"made twice, the same bytes: {', '.join(one.name for one in files)}", flush=True)
    check(bin, files)
    check_schemas(bin)
    version = files[0].name.split("-")[1]
    subprocess.run(
        [bin / "python", ROOT / "tests/check_recipes.py", fill_recipes(files, version)], check=True
    )
    sums = "".join(f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in files)
    (FOLDER / "SHA256SUMS").write_text(sums)
    print(sums, end="", flush=True)
    if words == ["--build"]:
        return 0
    built = {"wheel": next(dist.glob("*.whl")), "sdist": next(dist.glob("*.tar.gz"))}
    return platforms.examine_all(words, built, short=True, table=FOLDER / "platforms.md")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
