"""The convolutional network, whose activations and skip connection work in place."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from digits_lab.data import Batch, Digits, iterate_batches
from digits_lab.losses import accuracy, smoothed_cross_entropy
from digits_lab.models import DigitCNN
from digits_lab.pruning import apply_masks, magnitude_masks, pruned, sparsity


@pytest.fixture(scope="module")
def trained(train: Digits) -> Iterator[DigitCNN]:
    """A network after one short pass, shared by the module's tests; they mustn't change it."""
    torch.manual_seed(1)
    model = DigitCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for images, labels in iterate_batches(train.take(640), 32, seed=0):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    model.zero_grad()
    before = copy.deepcopy(model.state_dict())
    yield model.eval()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_in_place_gradients_match_out_of_place(batch: Batch) -> None:
    images, labels = batch
    model = DigitCNN(inplace=True)
    plain = DigitCNN(inplace=False)
    model.block.norm.weight.data.fill_(1.0)
    plain.load_state_dict(model.state_dict())
    for network in (model, plain):
        F.cross_entropy(network(images), labels).backward()
    for ours, reference in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, reference.grad)


def test_it_learns_the_digits(trained: DigitCNN, held_out: Digits) -> None:
    images, labels = held_out.tensors()
    with torch.no_grad():
        assert accuracy(trained(images), labels) > 0.8


def test_saliency_in_evaluation_mode(trained: DigitCNN, batch: Batch) -> None:
    """Input gradients only; the shared network's own gradients stay untouched."""
    images = batch[0].clone().requires_grad_()
    score = trained(images).max(dim=1).values.sum()
    (saliency,) = torch.autograd.grad(score, images)
    saliency.abs_()
    saliency /= saliency.amax(dim=(2, 3), keepdim=True).clamp_min_(1e-12)
    assert saliency.max() <= 1.0
    assert all(p.grad is None for p in trained.parameters())


def test_adversarial_steps_update_the_input_between_backwards(trained: DigitCNN, batch: Batch) -> None:
    images, labels = batch
    perturbed = images.clone().requires_grad_()
    for _ in range(3):
        loss = F.cross_entropy(trained(perturbed), labels)
        (gradient,) = torch.autograd.grad(loss, perturbed)
        with torch.no_grad():
            perturbed += 0.05 * gradient.sign_()
            perturbed.clamp_(0.0, 1.0)
    with torch.no_grad():
        assert F.cross_entropy(trained(perturbed), labels) > F.cross_entropy(trained(images), labels)


def test_what_if_pruning_between_forward_and_backward(batch: Batch) -> None:
    images, labels = batch
    model = DigitCNN().eval()
    masks = magnitude_masks(model, 0.5)
    expected = torch.autograd.grad(F.cross_entropy(model(images), labels), list(model.parameters()))
    loss = F.cross_entropy(model(images), labels)
    with pruned(model, masks):
        assert 0.45 < sparsity(model, masks) < 0.55
        model.predict(images)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))


def test_masks_are_applied_after_each_step(batch: Batch) -> None:
    images, labels = batch
    model = DigitCNN()
    masks = magnitude_masks(model, 0.3)
    apply_masks(model, masks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(2):
        optimizer.zero_grad(set_to_none=False)
        smoothed_cross_entropy(model(images), labels).backward()
        optimizer.step()
        apply_masks(model, masks)
    assert sparsity(model, masks) >= 0.29


@pytest.mark.skipif(not torch.cuda.is_available(), reason="half precision convolutions need a GPU")
def test_half_precision_on_the_gpu(batch: Batch) -> None:
    model = DigitCNN().cuda()
    with torch.autocast("cuda", torch.float16):
        loss = F.cross_entropy(model(batch[0].cuda()), batch[1].cuda())
    loss.backward()
    assert torch.isfinite(model.head.weight.grad).all()
