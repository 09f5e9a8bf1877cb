import torch
from torch.utils.checkpoint import checkpoint


def block(state):
    tokens = state["tokens"]
    tokens += 1
    return tokens * state["weight"]


def test_checkpointed():
    weight = torch.tensor([1.0, 2.0], requires_grad=True)
    state = {"tokens": torch.tensor([1.0, 1.0]), "weight": weight}
    out = checkpoint(block, state, use_reentrant=False)
    out.sum().backward()
