"""Copies that nobody waits for, and work on several streams; see ``test_hazards.py``.

Each line that ends in ``# hazard OPERATOR`` is to be told, and no other.
"""

from __future__ import annotations

import os

import torch

DEVICE = os.environ.get("PYTEST_INPLACE_DEVICE", "standin")


def host(size: int = 4) -> torch.Tensor:
    return torch.ones(size).pin_memory()


def test_source_overwritten() -> None:
    source = host()
    there = source.to(DEVICE, non_blocking=True)
    source.zero_()  # hazard zero_
    assert there.is_floating_point()


def test_pageable_source_overwritten() -> None:
    source, there = torch.ones(4), torch.empty(4, device=DEVICE)
    there.copy_(source, non_blocking=True)
    source[1:].add_(1)  # hazard add_


def test_source_overwritten_after_the_device_was_awaited() -> None:
    source = host()
    source.to(DEVICE, non_blocking=True)
    torch.accelerator.synchronize()
    source.zero_()


def test_source_overwritten_after_the_stream_was_awaited() -> None:
    source = host()
    source.to(DEVICE, non_blocking=True)
    torch.accelerator.current_stream().synchronize()
    source.zero_()


def test_source_overwritten_after_an_event() -> None:
    source = host()
    source.to(DEVICE, non_blocking=True)
    event = torch.Event(device=DEVICE)
    event.record()
    event.synchronize()
    source.zero_()


def test_source_overwritten_after_an_event_before_the_copy() -> None:
    source = host()
    event = torch.Event(device=DEVICE)
    event.record()
    source.to(DEVICE, non_blocking=True)
    event.synchronize()
    source.zero_()  # hazard zero_


def test_source_overwritten_after_a_number_was_read() -> None:
    source = host()
    there = source.to(DEVICE, non_blocking=True)
    there.sum().item()
    source.zero_()


def test_source_overwritten_after_a_copy_that_blocks() -> None:
    source = host()
    there = source.to(DEVICE, non_blocking=True)
    there.cpu()
    source.zero_()


def test_source_read_and_the_copy_written() -> None:
    source = host()
    there = source.to(DEVICE, non_blocking=True)
    there.mul_(2)
    assert source.sum() == 4


def test_result_read_too_early() -> None:
    back = torch.ones(4, device=DEVICE).to("cpu", non_blocking=True)
    back.sum()  # hazard sum


def test_result_written_too_early() -> None:
    back = host()
    back.copy_(torch.ones(4, device=DEVICE), non_blocking=True)
    back.add_(1)  # hazard add_


def test_result_listed_too_early() -> None:
    back = torch.ones(4, device=DEVICE).to("cpu", non_blocking=True)
    back.tolist()  # hazard tolist


def test_result_read_in_time() -> None:
    back = torch.ones(4, device=DEVICE).to("cpu", non_blocking=True)
    assert back.is_pinned()
    assert torch.zeros_like(back).view(2, 2).shape == back.view(2, 2).shape
    getattr(torch, DEVICE).synchronize()
    back.sum()


def test_result_sent_back_is_in_order() -> None:
    back = torch.ones(4, device=DEVICE).to("cpu", non_blocking=True)
    back.to(DEVICE, non_blocking=True)


def test_training_with_one_buffer() -> None:
    buffer, w = host(), torch.ones(4, device=DEVICE, requires_grad=True)
    for _ in range(2):
        buffer.fill_(2)  # hazard fill_
        (w * buffer.to(DEVICE, non_blocking=True)).sum().backward()


def test_training_that_reads_its_loss() -> None:
    buffer, w = host(), torch.ones(4, device=DEVICE, requires_grad=True)
    for _ in range(2):
        buffer.fill_(2)
        loss = (w * buffer.to(DEVICE, non_blocking=True)).sum()
        loss.backward()
        loss.item()


def test_written_on_another_stream() -> None:
    x, side = torch.ones(4, device=DEVICE), torch.Stream(device=DEVICE)
    with side:
        x.mul_(2)  # hazard mul_


def test_written_on_another_stream_that_waits() -> None:
    x, side = torch.ones(4, device=DEVICE), torch.Stream(device=DEVICE)
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        x.mul_(2)
    torch.accelerator.current_stream().wait_stream(side)
    x.sum().item()


def test_read_before_the_other_stream_is_done() -> None:
    x, side = torch.ones(4, device=DEVICE), torch.Stream(device=DEVICE)
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        x.mul_(2)
    x.sum()  # hazard sum


def test_streams_in_order_by_an_event() -> None:
    x, side = torch.ones(4, device=DEVICE), torch.Stream(device=DEVICE)
    done = torch.Event(device=DEVICE)
    done.record()
    side.wait_event(done)
    with side:
        x.mul_(2)
        done.record()
    torch.accelerator.current_stream().wait_event(done)
    x.add_(1)


def test_streams_in_order_by_the_host() -> None:
    x, side = torch.ones(4, device=DEVICE), torch.Stream(device=DEVICE)
    torch.accelerator.synchronize()
    with side:
        x.mul_(2)
    side.synchronize()
    x.add_(1)


def test_streams_that_share_nothing_written() -> None:
    x, side = torch.ones(4, device=DEVICE, requires_grad=True), torch.Stream(device=DEVICE)
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        y = (x * 2).sum()
    z = (x * 3).sum()
    torch.accelerator.current_stream().wait_stream(side)
    (y + z).backward()
