import torch


def test_two():
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    a = w * 2
    b = w * 3
    y = a * a + b * b
    a.data.add_(1)
    b.data.add_(1)
    y.sum().backward()
