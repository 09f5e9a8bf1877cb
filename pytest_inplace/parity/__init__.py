"""Device parity: a program run on another device and compared with its run on the CPU; no pytest."""
