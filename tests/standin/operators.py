"""The stand-in device against the CPU, over torch's operator database: ``python -m tests.standin.operators``.

Each operator runs on the same samples on both, forward, backward and, where there is one, in place. It
*agrees* if all samples give the same values on the right device, *differs* if one does not, and *cannot run*
if the stand-in refuses what the CPU accepts. Of operators that draw random numbers or leave memory unfilled,
shapes and dtypes are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

from tests.standin import device

SAMPLES = 4
ROOT = Path(__file__).parents[2]
DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64)
UNFILLED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
ON_THE_HOST = ("tensor_split",)
"""What takes its other arguments on the CPU, whatever the device."""
AGREES, DIFFERS, CANNOT_RUN, NO_SAMPLE = "agrees", "differs", "cannot run", "no sample for the CPU"
VERDICTS = (AGREES, DIFFERS, CANNOT_RUN, NO_SAMPLE)


@dataclass(frozen=True)
class Result:
    """What came of one operator, and of which sample."""

    name: str
    verdict: str
    why: str = ""
    samples: int = 0
    backward: int = 0
    in_place: int = 0


class Differs(Exception):
    """The device computed something else."""


def operators(pattern: str = "") -> list[Any]:
    return [op for op in op_db if re.search(pattern, label(op))]


def label(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def examine(op: Any, samples: int = SAMPLES, dtype: torch.dtype | None = None) -> Result:
    """Run one operator on both devices; what differs in single precision has to agree in double."""
    dtype = dtype or _dtype(op)
    name, done, backward, in_place = label(op), 0, 0, 0
    try:
        given = list(islice(_samples(op, dtype), samples))
    except Exception:
        given = []
    for sample in given:
        here = _outcome(op, sample, "cpu")
        if isinstance(here, Exception):
            continue  # not the device's fault
        done += 1
        there = _outcome(op, sample, device.NAME, here["in place"] is not None)
        if isinstance(there, Exception):
            text = f"{type(there).__name__}: {there}".splitlines()[0]
            return Result(name, CANNOT_RUN, f"sample {done}: {text[:200]}", done)
        try:
            _compare(op, here, there)
        except Differs as error:
            if dtype == torch.float32:
                return examine(op, samples, torch.float64)
            return Result(name, DIFFERS, f"sample {done}: {error}", done)
        backward += here["backward"] is not None
        in_place += here["in place"] is not None
    return Result(name, AGREES if done else NO_SAMPLE, "", done, backward, in_place)


def _dtype(op: Any) -> torch.dtype:
    supported = op.supported_dtypes("cpu")
    return next((d for d in DTYPES if d in supported), None) or next(iter(supported), torch.float32)


def _samples(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    wants = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    torch.manual_seed(0)
    yield from op.sample_inputs("cpu", dtype, requires_grad=wants)


def _outcome(op: Any, sample: Any, where: str, in_place: bool = True) -> Any:
    """Results, gradients, and what the in-place variant left; or what was raised."""
    inputs: list[torch.Tensor] = []

    def moved(value: Any, grad: bool) -> Any:
        if isinstance(value, torch.Tensor):
            copy = value.detach().clone()
            copy = copy.to(where) if copy.device.type == "cpu" else copy
            if value.requires_grad and grad:
                inputs.append(copy.requires_grad_())
            return copy
        if isinstance(value, torch.device) or (isinstance(value, str) and value == "cpu"):
            return torch.device(where)
        return value

    def call(function: Callable[..., Any], grad: bool) -> Any:
        torch.manual_seed(0)
        first = tree_map(lambda v: moved(v, grad), sample.input)
        rest = sample.args, sample.kwargs
        args, kwargs = rest if op.name in ON_THE_HOST else tree_map(lambda v: moved(v, grad), rest)
        args = [first, *args]
        return function(*args, **kwargs), args[0]

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given, _ = call(op, True)
            results = _tensors(sample.output_process_fn_grad(given))
            grads = _backward(results, inputs)
            written = None
            if in_place and op.inplace_variant is not None and not sample.broadcasts_input:
                with contextlib.nullcontext() if where != "cpu" else contextlib.suppress(Exception):
                    _, target = call(op.inplace_variant, False)
                    written = (target, target._version)
        return {"results": _tensors(given), "backward": grads, "in place": written}
    except Exception as error:
        return error


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]


def _backward(results: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[Any] | None:
    roots = [t for t in results if t.requires_grad]
    if not inputs or not roots:
        return None
    torch.manual_seed(1)
    weights = [torch.randn(r.shape, dtype=r.dtype).to(r.device) for r in roots]
    if any(r.layout is not torch.strided for r in roots):
        return None
    return list(torch.autograd.grad(roots, inputs, weights, allow_unused=True))


def _compare(op: Any, here: Any, there: Any) -> None:
    random = op.name in UNFILLED or torch.Tag.nondeterministic_seeded in _tags(op)
    _same(here["results"], there["results"], "result", random)
    if (here["backward"] is None) != (there["backward"] is None):
        raise Differs("only one of the two has a backward pass")
    _same(here["backward"] or [], there["backward"] or [], "gradient", random)
    if here["in place"] is not None and there["in place"] is not None:
        (right, version), (got, moved) = here["in place"], there["in place"]
        _same([right], [got], "tensor written in place", random)
        if version != moved:
            raise Differs(f"in place: version {version} on the CPU, {moved} there")


def _tags(op: Any) -> set[Any]:
    """The tags of what may run below: random operators say so in their overloads, or in their names."""
    packet = getattr(torch.ops.aten, op.aten_name or op.name.rpartition(".")[2], None)
    tags = {t for o in packet.overloads() for t in getattr(packet, o).tags} if packet is not None else set()
    if re.search(
        "dropout|rrelu|rand|fractional_max_pool|multinomial|bernoulli|normal$|cauchy|_log_normal", op.name
    ):
        tags.add(torch.Tag.nondeterministic_seeded)
    return tags


def _same(right: list[Any], got: list[Any], what: str, random: bool) -> None:
    if len(right) != len(got):
        raise Differs(f"{len(right)} {what}s on the CPU, {len(got)} there")
    for i, (a, b) in enumerate(zip(right, got, strict=True)):
        if a is None or b is None:
            if a is not b:
                raise Differs(f"{what} {i} is missing on one of the two")
            continue
        if b.device.type != device.NAME:
            raise Differs(f"{what} {i} is on {b.device}")
        if a.requires_grad != b.requires_grad:
            raise Differs(f"{what} {i} requires a gradient on one of the two only")
        if a._is_view() != b._is_view():
            raise Differs(f"{what} {i} is a view on one of the two only")
        if random:
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                raise Differs(f"{what} {i}: {a.dtype} {list(a.shape)}, there {b.dtype} {list(b.shape)}")
            continue
        try:
            torch.testing.assert_close(b.detach().cpu(), a.detach(), equal_nan=True)
        except AssertionError as error:
            raise Differs(f"{what} {i}: {' '.join(str(error).split())[:200]}") from None


# -- all of them, in processes of their own: an operator may take its process with it ------------------------


def examine_all(names: list[str]) -> Iterator[Result]:
    while names:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.standin.operators", "--worker", *names],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            result = Result(**json.loads(line))
            yield result
            names = names[names.index(result.name) + 1 :]
        if process.wait() and names:
            yield Result(names[0], CANNOT_RUN, f"the process ended with {process.returncode}")
            names = names[1:]


def _work(names: list[str]) -> None:
    device.load()
    by_name = {label(op): op for op in op_db}
    for name in names:
        print(json.dumps(vars(examine(by_name[name]))), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.standin.operators", description=__doc__)
    parser.add_argument("--ops", metavar="REGEX", default="", help="only operators that match")
    parser.add_argument("--worker", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        _work(options.worker)
        return 0
    results = []
    for result in examine_all([label(op) for op in operators(options.ops)]):
        results.append(result)
        if result.verdict != AGREES:
            print(f"{result.name}: {result.verdict}: {result.why}", flush=True)
    counts = {v: sum(r.verdict == v for r in results) for v in VERDICTS}
    print(f"{len(results)} operators: " + ", ".join(f"{counts[v]} {v}" for v in VERDICTS if counts[v]))
    samples, backward = sum(r.samples for r in results), sum(r.backward for r in results)
    print(f"{samples} samples, {backward} with a backward pass, {sum(r.in_place for r in results)} in place")
    return 0


if __name__ == "__main__":
    sys.exit(main())
