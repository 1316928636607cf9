"""What is read of the processor's caches."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcoll.base.caches import last_level_nbytes


@pytest.mark.parametrize(
    ("sizes", "expected"), [(["48K", "1024K", "32768K"], 32 << 20), (["64K", "2M"], 2 << 20), ([], 32 << 20), (["unknown"], 32 << 20)]
)
def test_the_largest_counts(sizes: list[str], expected: int, tmp_path: Path) -> None:
    for i, size in enumerate(sizes):
        (tmp_path / f"index{i}").mkdir()
        (tmp_path / f"index{i}/size").write_text(size + "\n")
    assert last_level_nbytes(tmp_path) == expected


def test_this_processor() -> None:
    assert last_level_nbytes() >= 1 << 18
