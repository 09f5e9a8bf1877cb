"""``--inplace-parity=cpu``: two runs on the CPU have to agree bit for bit. Needs no other device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.conftest import check, nothing_left_behind, plain_surroundings  # noqa: F401
from tests.integration.support import function

if TYPE_CHECKING:
    from tests.integration.conftest import Check

STEADY = """
import torch
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(5, 3)).sum().backward()
optimizer.step()
"""
RANDOM = """
import random
w = torch.ones(3, requires_grad=True)
(w * random.SystemRandom().random()).sum().backward()  # the use
"""


def test_a_steady_test_agrees(check: Check) -> None:  # noqa: F811
    run = check(function("test_it", STEADY), "--inplace-parity=cpu")
    run.outcomes(passed=1)
    parity = run.record()["parity"]
    assert (parity["verdict"], parity["runs"]) == ("agrees", 1)
    # One root, four gradients, four parameters.
    assert parity["points"] == parity["equal"] == 9
    run.result.stdout.fnmatch_lines(["parity with cpu: 1 agree; 9 values compared, 9 equal bit for bit"])


def test_a_random_one_differs(check: Check) -> None:  # noqa: F811
    run = check(function("test_it", RANDOM), "--inplace-parity=cpu")
    run.outcomes(failed=1)
    finding = run.finding()
    assert (finding["code"], finding["divergence"]["deterministic"]) == ("INP301", False)
    assert finding["used"]["source"].endswith("# the use")
    run.result.stdout.fnmatch_lines(["*two runs on cpu differ*", "*--inplace-parity=cpu"])


@pytest.mark.parametrize("where", ["ini", "marker"])
def test_ini_and_marker(where: str, check: Check, pytester: pytest.Pytester) -> None:  # noqa: F811
    mark = '@pytest.mark.inplace_safe(parity="cpu")\n' if where == "marker" else ""
    if where == "ini":
        pytester.makeini("[pytest]\ninplace_parity = cpu")
    run = check(mark + function("test_it", STEADY).lstrip(), flag=False)
    run.outcomes(passed=1)
    assert run.record()["parity"]["device"] == "cpu"


def test_marker_beats_option(check: Check) -> None:  # noqa: F811
    run = check('@pytest.mark.inplace_safe(parity="never")\n' + function("test_it", RANDOM).lstrip(),
                "--inplace-parity=cpu")  # fmt: skip
    run.outcomes(passed=1)
    assert run.record()["parity"] is None


def test_what_is_no_device(check: Check, pytester: pytest.Pytester) -> None:  # noqa: F811
    run = check(function("test_it", STEADY), "--inplace-parity=two words")
    assert run.result.ret == pytest.ExitCode.USAGE_ERROR
    run.result.stderr.fnmatch_lines(["*--inplace-parity: 'two words' is no device, such as cuda or cuda:1"])
    pytester.makeini("[pytest]\ninplace_parity = CUDA")
    run = check(function("test_it", STEADY))
    run.result.stderr.fnmatch_lines(["*inplace_parity in *tox.ini: 'CUDA' is no device*"])
    pytester.makeini("")
    run = check("@pytest.mark.inplace_safe(parity=3)\n" + function("test_it", STEADY).lstrip())
    run.result.stderr.fnmatch_lines(["*inplace_safe: parity=3 is not one of a device, never"])


@pytest.mark.parametrize("name", ["banana", "privateuseone", "cuda:7"])
def test_devices_that_are_not_there(name: str, check: Check) -> None:  # noqa: F811
    import torch

    if torch.cuda.is_available() and name.startswith("cuda"):
        pytest.skip("there may be one")
    run = check(function("test_it", STEADY), f"--inplace-parity={name}")
    run.outcomes(passed=1)
    parity = run.record()["parity"]
    assert parity["verdict"] == "not compared"
    assert parity["reason"] in (
        f"torch knows no device {name!r}",
        f"there is no {name.partition(':')[0]} device here",
    )
