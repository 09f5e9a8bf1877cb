import torch


def test_packed():
    packed = torch.ones(2, 6, requires_grad=True) * 2
    q, k, v = packed.chunk(3, dim=-1)
    q *= 0.5
    (q + k + v).sum().backward()
