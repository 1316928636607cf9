"""The Python of docs/how_to/torch_distributed.md runs as it stands."""

from typing import Any

import torch
import torch.distributed as dist
from operations import NRANKS
from pages import BLOCKS


def test_page() -> None:
    """It makes the world's group itself, and ends it."""
    (block,) = [
        one for one in BLOCKS if one.page == "docs/how_to/torch_distributed.md" and one.language == "python"
    ]
    names: dict[str, Any] = {}
    dist.destroy_process_group()
    try:
        exec(compile("\n" * block.line + block.text, block.page, "exec"), names)  # noqa: S102
    finally:
        dist.init_process_group("hpcoll")
    assert (names["x"] == NRANKS * (NRANKS - 1) / 2).all()
    gradient = names["model"].module.weight.grad.clone()
    dist.broadcast(gradient, 0)
    assert torch.equal(gradient, names["model"].module.weight.grad)
