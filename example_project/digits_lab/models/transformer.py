"""A causal transformer over quantised pixels, with a key-value cache for generation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from digits_lab.data import LEVELS

START = LEVELS  # the token that opens every sequence


@dataclass
class KVCache:
    """Preallocated keys and values of every layer, each (layers, batch, heads, length, width)."""

    keys: Tensor
    values: Tensor
    length: int = 0

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new positions and return all of those seen so far."""
        end = self.length + key.shape[2]
        self.keys[layer, :, :, self.length : end] = key
        self.values[layer, :, :, self.length : end].copy_(value)
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


class CausalSelfAttention(nn.Module):
    """Multi-head attention whose scores are scaled and masked in place.

    Nothing needs the raw scores again: the matrix product keeps its factors, and softmax its own result.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, cache: KVCache | None = None, layer: int = 0) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        if cache is not None:
            key, value = cache.append(layer, key, value)
        scores = query @ key.transpose(-2, -1)
        scores *= 1.0 / math.sqrt(query.shape[-1])
        past = key.shape[2] - length
        future = torch.ones(length, key.shape[2], dtype=torch.bool, device=x.device).triu_(past + 1)
        scores.masked_fill_(future, float("-inf"))
        mixed = scores.softmax(dim=-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Pre-norm attention and feed-forward layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = CausalSelfAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 2 * width)
        self.contract = nn.Linear(2 * width, width)

    def forward(self, x: Tensor, cache: KVCache | None = None, layer: int = 0) -> Tensor:
        x = x + self.attention(self.norm1(x), cache, layer)
        return x + self.contract(F.gelu(self.expand(self.norm2(x))))


class PixelTransformer(nn.Module):
    """Predicts each pixel level from the ones before it."""

    def __init__(self, width: int = 32, heads: int = 4, layers: int = 2, max_length: int = 64) -> None:
        super().__init__()
        self.heads = heads
        self.max_length = max_length
        self.checkpoint_blocks = False
        self.tokens = nn.Embedding(LEVELS + 1, width)
        self.positions = nn.Parameter(torch.empty(max_length, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, LEVELS)
        self.tokens.weight.data.normal_(0.0, 0.1)
        self.positions.data.normal_(0.0, 0.1)

    def forward(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        start = 0 if cache is None else cache.length
        x = self.tokens(tokens)
        x += self.positions[start : start + tokens.shape[1]]
        for layer, block in enumerate(self.blocks):
            if self.checkpoint_blocks and self.training and cache is None:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x, cache, layer)
        if cache is not None:
            cache.length += tokens.shape[1]
        return self.head(self.norm(x))

    def shifted(self, tokens: Tensor) -> Tensor:
        """Inputs for next-token training: the start token, then all but the last token."""
        inputs = torch.empty_like(tokens)
        inputs[:, 0] = START
        inputs[:, 1:] = tokens[:, :-1]
        return inputs

    def new_cache(self, batch: int) -> KVCache:
        """An empty cache for `batch` sequences."""
        width = self.positions.shape[1] // self.heads
        keys = torch.zeros(len(self.blocks), batch, self.heads, self.max_length, width)
        return KVCache(keys, torch.zeros_like(keys))

    @torch.no_grad()
    def generate(self, batch: int, length: int, generator: torch.Generator | None = None) -> Tensor:
        """Sample `length` pixels, one position at a time."""
        cache = self.new_cache(batch)
        result = torch.empty(batch, length, dtype=torch.long)
        current = torch.full((batch, 1), START)
        for position in range(length):
            probabilities = self(current, cache)[:, -1].softmax(-1)
            current = torch.multinomial(probabilities, 1, generator=generator)
            result[:, position : position + 1] = current
        return result
