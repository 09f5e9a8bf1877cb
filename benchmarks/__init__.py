"""What the check costs, as ratios to plain PyTorch: ``python -m benchmarks --help``."""
