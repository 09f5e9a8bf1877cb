import torch


def floored(x, w):
    gate = x * w
    out = gate * w
    gate.data.clamp_(min=3.0)
    return out


def test_gate():
    w = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    out = floored(torch.tensor([1.0, 1.0, 1.0]), w)
    out.sum().backward()
    assert w.grad.sum() > 0
