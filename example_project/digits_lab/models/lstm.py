"""A recurrent classifier that reads digits row by row from an endless stream."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from digits_lab.data import CLASSES, SIDE

State = tuple[Tensor, Tensor]


class RowLSTM(nn.Module):
    """An LSTM cell over rows of pixels; the state is carried from one call to the next."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(SIDE, hidden)
        self.head = nn.Linear(hidden, CLASSES)
        # The forget gate starts open, or the first rows would be forgotten before they're learnt from.
        self.cell.bias_ih.data[hidden : 2 * hidden].fill_(1.0)

    def initial_state(self, batch: int) -> State:
        """Zeros for `batch` streams."""
        zeros = torch.zeros(batch, self.cell.hidden_size)
        return zeros, zeros.clone()

    def forward(self, rows: Tensor, state: State) -> tuple[Tensor, State]:
        """Logits after each of the rows (batch, rows, 8), and the state after the last."""
        hidden, memory = state
        outputs = []
        for row in rows.unbind(1):
            hidden, memory = self.cell(row, (hidden, memory))
            outputs.append(hidden)
        return self.head(torch.stack(outputs, dim=1)), (hidden, memory)


def detach_state(state: State) -> State:
    """Cut the graph, so that backward stops at the start of the chunk."""
    hidden, memory = state
    return hidden.detach(), memory.detach()


def reset_streams(state: State, finished: Tensor) -> State:
    """Zero the state of the streams whose digit has ended; the state must be detached and backward done."""
    hidden, memory = state
    hidden[finished] = 0.0
    memory[finished] = 0.0
    return hidden, memory


def chunks(images: Tensor, rows: int) -> Iterator[tuple[Tensor, bool]]:
    """Consecutive chunks of `rows` rows, each with whether it ends the digit."""
    flat = images.squeeze(1)
    for start in range(0, SIDE, rows):
        yield flat[:, start : start + rows], start + rows >= SIDE


def truncated_bptt(
    model: RowLSTM,
    optimizer: torch.optim.Optimizer,
    images: Tensor,
    labels: Tensor,
    state: State,
    rows: int = 4,
    clip_norm: float = 1.0,
) -> tuple[float, State]:
    """One digit per stream, with an optimizer step after each chunk of rows."""
    total = 0.0
    for chunk, ends in chunks(images, rows):
        logits, state = model(chunk, detach_state(state))
        loss = F.cross_entropy(logits[:, -1], labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        total = loss.item()
        if ends:
            state = reset_streams(detach_state(state), torch.ones(len(labels), dtype=torch.bool))
    return total, detach_state(state)
