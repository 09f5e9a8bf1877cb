import torch


def test_fill():
    a = torch.arange(6.0).reshape(2, 3).requires_grad_()
    b = torch.arange(6.0).reshape(3, 2).requires_grad_()
    d = a @ b
    e = d * d
    d[:] = 1
    e.sum().backward()
