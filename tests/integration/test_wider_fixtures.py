"""What a second run does not do again: fixtures of wider scopes, caches. The test is judged all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.support import line_of

if TYPE_CHECKING:
    from tests.integration.conftest import Check

TRAINED = """
import functools
import os


def train():
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Sigmoid())
    for _ in range(3):
        net(torch.randn(2, 3)).sum().backward()  # the training
    os.environ["TRAINED"] = "yes"
    return net
"""
CACHED = """
trained = functools.lru_cache(train)
"""
FIXTURE = """
@pytest.fixture(scope="{scope}")
def shared():
    return train()

@pytest.fixture(autouse=True)
def own():
    assert os.environ["TRAINED"] == "yes"

@pytest.fixture(autouse=True, scope="{scope}")
def early(shared):
    pass
"""


@pytest.mark.parametrize("scope", ["class", "module", "session"])
def test_a_defect_after_a_wider_fixture_has_trained(
    check: Check, pytester: pytest.Pytester, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRAINED", raising=False)
    run = check(
        TRAINED
        + FIXTURE.format(scope=scope)
        + """
def test_defect(shared):
    noise = torch.randn(3)
    h = shared(torch.ones(2, 3)) + noise
    y = torch.sigmoid(h)  # the save
    y.data.mul_(2)  # the write
    y.sum().backward()
"""
    )
    finding, path = run.finding(), pytester.path / "test_it.py"
    assert (finding["code"], finding["replayed"]) == ("INP102", True)
    assert finding["saved"]["line"] == line_of(path, "# the save")
    assert finding["modified"]["line"] == line_of(path, "# the write")
    assert finding["gradients"]


def test_harmless_after_a_wider_fixture_has_trained(check: Check) -> None:
    run = check(
        TRAINED
        + FIXTURE.format(scope="module")
        + """
def test_harmless(shared):
    h = torch.relu(shared(torch.ones(2, 3)) + 1)
    h.data.mul_(2)
    h.sum().backward()
"""
    )
    run.outcomes(passed=1)
    assert run.record()["coverage"]["saved"] > 3


def test_what_only_the_first_run_computes(check: Check, pytester: pytest.Pytester) -> None:
    run = check(
        TRAINED
        + CACHED
        + """
def test_defect():
    net = trained()
    y = torch.sigmoid(net(torch.ones(2, 3)))  # the save
    y.data.mul_(2)  # the write
    y.sum().backward()

def test_harmless():
    trained.cache_clear()
    h = torch.relu(trained()(torch.ones(2, 3)) + 1)
    h.data.mul_(2)
    h.sum().backward()
"""
    )
    run.outcomes(passed=1, failed=1)
    finding = run.finding("test_defect")
    assert finding["modified"]["line"] == line_of(pytester.path / "test_it.py", "# the write")
    assert finding["gradients"]


@pytest.mark.parametrize(("write", "code"), [("y.add_(1)", "INP101"), ("y.data.add_(1)", "INP102")])
def test_a_graph_that_a_wider_fixture_made(
    check: Check, pytester: pytest.Pytester, write: str, code: str
) -> None:
    run = check(
        f"""
@pytest.fixture(scope="module")
def graph():
    return torch.ones(3, requires_grad=True).exp()

def test_right(graph):
    graph.sum().backward(retain_graph=True)

def test_defect(graph):
    y = graph
    {write}  # the write
    y.sum().backward(retain_graph=True)
"""
    )
    run.outcomes(passed=1, failed=1)
    finding = run.finding("test_defect")
    assert finding["code"] == code
    assert finding["modified"]["line"] == line_of(pytester.path / "test_it.py", "# the write")
    assert "it was saved before this test" in run.text


def test_the_random_numbers_of_the_test_are_those_after_the_wider_fixtures(check: Check) -> None:
    run = check(
        TRAINED
        + FIXTURE.format(scope="module")
        + """
SEEN = []

def test_defect(shared):
    SEEN.append(torch.rand(1).item())
    assert len(set(SEEN)) == 1
    y = torch.ones(3, requires_grad=True).exp()
    y.data.mul_(2)
    y.sum().backward()
    if len(SEEN) == 2:
        print("the same")

def test_after(shared):
    assert len(SEEN) == 2 and len(set(SEEN)) == 1
"""
    )
    run.outcomes(passed=1, failed=1)


def test_a_write_before_the_backward_of_a_tear_down_is_told_once(check: Check) -> None:
    run = check(
        """
@pytest.fixture
def hidden():
    h = torch.ones(3, requires_grad=True).exp()
    yield h
    h.sum().backward()

def test_defect(hidden):
    hidden.data.mul_(2)  # the write
"""
    )
    run.outcomes(failed=1)
    assert (run.finding()["code"], run.finding()["state"]) == ("INP102", "confirmed")


def test_a_version_error_in_a_wider_fixture_does_not_close_the_book(check: Check) -> None:
    """What was saved before PyTorch raised is done with; what the test saves afterwards is not."""
    run = check(
        """
@pytest.fixture(scope="module")
def refused():
    w = torch.ones(3, requires_grad=True)
    h = w.exp()
    h.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        h.sum().backward()

def test_latent(refused):
    w = torch.ones(3, requires_grad=True)
    h = w.exp()
    y = h * h
    h.data.mul_(2)
    z = y + h
"""
    )
    run.outcomes(failed=1)
    finding = run.finding()
    assert (finding["code"], finding["state"]) == ("INP102", "latent")
