"""What setup.cfg says about the packages is what the folders hold."""

from __future__ import annotations

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
