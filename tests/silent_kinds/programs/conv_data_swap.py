"""A convolution's pruned weight is swapped back, through `.data =`, before backward."""

from __future__ import annotations

import torch
from torch import nn


def run(write: bool) -> list[torch.Tensor | None]:
    conv = nn.Conv2d(1, 1, 2, bias=False)
    dense = torch.tensor([[[[1.0, -2.0], [3.0, 0.5]]]])
    conv.weight.data = dense * torch.tensor([1.0, 0.0])
    image = torch.arange(9.0).reshape(1, 1, 3, 3).requires_grad_()
    out = conv(image)  # SAVED
    if write:
        conv.weight.data = dense  # WRITTEN
    out.sum().backward()
    return [conv.weight.grad, image.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
