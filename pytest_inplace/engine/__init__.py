"""Watching a run, judging what was overwritten, running again to explain it. Knows torch, but no pytest."""
