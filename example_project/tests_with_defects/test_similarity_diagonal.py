"""Defect: the product of two matrices is overwritten after it was squared, before backward."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from digits_lab.data import load_split


class SimilarityPenalty(nn.Module):
    """Penalises correlated features: the squared entries of a projected Gram matrix."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.project = nn.Parameter(torch.randn(64, width) / 8)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The penalty, and the similarity matrix for the report."""
        features = images.flatten(1) @ self.project
        similarity = features.t() @ features
        energy = similarity * similarity  # SAVED
        penalty = energy.sum() - energy.diagonal().sum()
        return penalty, similarity


def summarise(similarity: Tensor) -> dict[str, float]:
    """Mean and spread of the off-diagonal similarities, for the log."""
    count = similarity.shape[0]
    off_diagonal = similarity.detach()
    off_diagonal[range(count), range(count)] = 0.0  # WRITTEN
    return {"mean": off_diagonal.mean().item(), "std": off_diagonal.std().item()}


def test_penalty_shrinks() -> None:
    torch.manual_seed(0)
    images, _ = load_split()[0].take(64).tensors()
    model = SimilarityPenalty()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    history = []
    for _ in range(4):
        penalty, similarity = model(images)
        report = summarise(similarity)
        optimizer.zero_grad()
        penalty.backward()
        optimizer.step()
        history.append(penalty.item())
        assert report["std"] > 0
    assert history[-1] < history[0]
