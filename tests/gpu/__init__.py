"""The checks of device parity on a real CUDA device: ``pytest tests/gpu``, skipped where there is none."""
