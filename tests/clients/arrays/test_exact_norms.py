"""`hpcoll.exact_norm` of a client's distributed arrays is the correctly rounded norm, hence has the same bits on any number of ranks."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "examples"))
import exact_norms


@pytest.mark.parametrize("package", exact_norms.PACKAGES)
def test_right(package: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Rank 0 says so, and prints both fingerprints."""
    pytest.importorskip(package)
    status = exact_norms.main([package])
    out = capsys.readouterr().out
    assert status == 0
    assert (
        out.count("correctly rounded: yes")
        == out.count(", exact norms ")
        == (exact_norms.MPI.COMM_WORLD.rank == 0)
    )
