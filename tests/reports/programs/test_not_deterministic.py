import torch

runs = []


def test_first_run_only():
    runs.append(1)
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    h = w * 2
    y = h * h
    if len(runs) == 1:
        h.data.add_(1)
    y.sum().backward()
