"""The states of the random number generators that a program can have used, taken and put back."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RandomStates:
    """Python's, NumPy's and torch's global generators; those not imported are ``None``."""

    python: Any
    numpy: Any
    torch: Any

    @classmethod
    def capture(cls) -> RandomStates:
        numpy_random = sys.modules.get("numpy.random")
        torch = sys.modules.get("torch")
        return cls(
            random.getstate(),
            numpy_random.get_state() if numpy_random is not None else None,
            torch.default_generator.get_state() if torch is not None else None,
        )

    def restore(self) -> None:
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy.random"].set_state(self.numpy)
        if self.torch is not None:
            sys.modules["torch"].default_generator.set_state(self.torch)
