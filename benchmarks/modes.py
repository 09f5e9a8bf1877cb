"""The ways of running a workload: nothing, the check, hooks that do nothing, and PyTorch's own tools."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch

from pytest_inplace.engine.ledger import Ledger
from pytest_inplace.engine.watch import Watch


@contextlib.contextmanager
def plugin() -> Iterator[None]:
    """What ``--inplace-check`` puts around a test."""
    watch = Watch(Ledger(), walk=False)
    watch.start()
    try:
        yield
    finally:
        watch.stop()
    if watch.ledger.suspects:
        raise AssertionError("a benchmark must be a right program: a suspect costs a second run")


def bare_hooks() -> AbstractContextManager[object]:
    """Saved-tensor hooks that do nothing: what any check that uses them costs at least."""
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


@contextlib.contextmanager
def anomaly() -> Iterator[None]:
    """Anomaly mode as it is recommended, looking for NaN included."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.set_detect_anomaly(True):
            yield


def allow_mutation() -> AbstractContextManager[object]:
    """The context in which PyTorch copies what is overwritten."""
    return torch.autograd.graph.allow_mutation_on_saved_tensors()


MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "plain": contextlib.nullcontext,
    "plugin": plugin,
    "bare hooks": bare_hooks,
    "anomaly": anomaly,
    "allow mutation": allow_mutation,
}
