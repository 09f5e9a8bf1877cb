import torch
import torch.nn.functional as F


def test_pruned():
    weight = torch.ones(1, 1, 3, requires_grad=True)
    x = torch.ones(1, 1, 5, requires_grad=True)
    dense = weight.data
    weight.data = dense * torch.tensor([1.0, 0.0, 1.0])
    out = F.conv1d(x, weight)
    weight.data = dense
    out.sum().backward()
