import torch


def descend(w, rate):
    w -= rate * w.grad


def test_descent():
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    w.square().sum().backward()
    descend(w, 0.5)
