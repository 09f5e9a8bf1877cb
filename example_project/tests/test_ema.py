"""Averaged weights: swapped in and out, bit for bit."""

from __future__ import annotations

import unittest

import torch
import torch.nn.functional as F
from torch import nn

from digits_lab.ema import WeightAverage


class WeightAverageTest(unittest.TestCase):
    def setUp(self) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(inplace=True), nn.Linear(16, 4))
        self.average = WeightAverage(self.model, decay=0.9)
        self.inputs = torch.randn(8, 12)
        self.targets = torch.randint(0, 4, (8,))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5, fused=True)

    def tearDown(self) -> None:
        self.assertFalse(self.average._swapped)

    def take_steps(self, count: int) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(self.inputs), self.targets).backward()
            self.optimizer.step()
            self.average.update()

    def test_swap_restores_every_bit(self) -> None:
        self.take_steps(3)
        before = [p.detach().clone() for p in self.model.parameters()]
        with self.average.swapped_in():
            for parameter, average in zip(self.model.parameters(), self.average.average, strict=True):
                self.assertTrue(torch.equal(parameter, average))
        for parameter, value in zip(self.model.parameters(), before, strict=True):
            self.assertTrue(torch.equal(parameter, value))

    def test_evaluation_in_the_middle_of_a_step(self) -> None:
        self.take_steps(3)
        weights = list(self.model.parameters())
        expected = torch.autograd.grad(F.cross_entropy(self.model(self.inputs), self.targets), weights)
        loss = F.cross_entropy(self.model(self.inputs), self.targets)
        with self.average.swapped_in(), torch.no_grad():
            averaged = F.cross_entropy(self.model(self.inputs), self.targets).item()
        gradients = torch.autograd.grad(loss, weights)
        self.assertNotEqual(averaged, loss.item())
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True)))

    def test_an_error_inside_still_restores(self) -> None:
        self.take_steps(1)
        before = self.model[0].weight.detach().clone()
        with self.assertRaises(ZeroDivisionError), self.average.swapped_in():
            _ = 1 / 0
        self.assertTrue(torch.equal(self.model[0].weight, before))
