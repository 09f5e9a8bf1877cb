import torch


def test_gradient():
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    h = w * 2
    y = h * h
    h.data.zero_()
    y.sum().backward()
    assert w.grad.tolist() == [8.0, 16.0]
