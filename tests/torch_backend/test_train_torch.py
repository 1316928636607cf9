"""``jobs/train_torch.py``: the loss goes down, and both backends come to the same."""

import argparse
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI

pytest.importorskip("sklearn")
sys.path.append(str(Path(__file__).parents[2] / "jobs"))

import train_torch
from train_torch import GLOO, HPCOLL

BATCH = 16


@pytest.mark.filterwarnings("ignore:Grad strides")
def test_both_backends_learn_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(steps=60, width=16, seed=0)
    groups = {HPCOLL: dist.group.WORLD, GLOO: dist.new_group(backend=GLOO)}
    contenders = {name: train_torch.contender(group, options) for name, group in groups.items()}
    train_torch.train(contenders, BATCH, options)
    assert train_torch.report(BATCH, contenders, options)
    ours, theirs = contenders.values()
    assert sum(ours.losses[-5:]) < 0.8 * sum(ours.losses[:5])
    torch.testing.assert_close(ours.losses[:10], theirs.losses[:10], rtol=1e-3, atol=0)
    if MPI.COMM_WORLD.size <= 2:  # of more, backends add in different orders
        assert all(
            torch.equal(*pair)
            for pair in zip(ours.model.parameters(), theirs.model.parameters(), strict=True)
        )
    assert ("losses agree" in capsys.readouterr().out) is (MPI.COMM_WORLD.rank == 0)
