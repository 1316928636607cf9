"""A virtual environment over the one that runs this, which may be virtual too: ``environment_over.py FOLDER``.

What is installed into it comes first; everything else is the outer one's. ``import`` finds that by a ``.pth`` file, but cuda-pathfinder
looks for CUDA's libraries only in ``site.getsitepackages()``: so the outer ``nvidia`` folders are repeated here as links.
"""

from __future__ import annotations

import site
import subprocess
import sys
from pathlib import Path


def outer_folders() -> list[Path]:
    """Return the folders of the outer environment's packages, the strongest first."""
    mine = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [Path(folder) for folder in (*mine, *site.getsitepackages()) if Path(folder).is_dir()]


def link_files(source: Path, target: Path) -> None:
    """Repeat a folder, with a link for each file that is not there yet."""
    for path in source.rglob("*"):
        here = target / path.relative_to(source)
        if not path.is_dir() and not here.exists():
            here.parent.mkdir(parents=True, exist_ok=True)
            here.symlink_to(path.resolve())


def main(folder: Path) -> None:
    """Make the environment."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    lines = [f"import site; site.addsitedir({str(outer)!r})" for outer in outer_folders()]
    (packages / "outer.pth").write_text("\n".join(lines) + "\n")
    for outer in outer_folders():
        link_files(outer / "nvidia", packages / "nvidia")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
