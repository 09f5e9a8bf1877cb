"""Ground truth from PyTorch's own operator database: what plain PyTorch does with a write to each tensor."""
