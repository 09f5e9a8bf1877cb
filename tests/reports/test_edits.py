"""Each kind of write, and the edits that are made up for it. Whether an edit is right is proved elsewhere."""

from __future__ import annotations

import textwrap

import pytest

pytest.importorskip("libcst")

from pytest_inplace.reports.edits import Change, merged, suggest
from pytest_inplace.reports.findings import Finding, Site, TensorInfo


def changes(source: str, *, code: str = "INP102", used: str | None = "backward") -> list[Change]:
    """The edits for the line with ``# W``, in ``f`` or the function that it says; backward is ``used``."""
    text = textwrap.dedent(source)
    lines = text.splitlines()
    written = next(i for i, line in enumerate(lines, 1) if "# W" in line)
    function = lines[written - 1].partition("# W")[2].strip() or "f"
    modified = Site("m.py", written, function)
    uses = [i for i, line in enumerate(lines, 1) if used is not None and f".{used}(" in line]
    finding = Finding(
        code, "confirmed", TensorInfo("x", (2,), "float32"),
        modified=modified, used=Site("m.py", uses[-1], "f") if uses else None,
    )  # fmt: skip
    return suggest(finding, lambda path: text.encode())


def added(change: Change) -> list[str]:
    return [
        line[1:].strip()
        for line in change.diff().splitlines()
        if line.startswith("+") and not line.startswith("+++")
    ]


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("x += y", "x = x + y"),
        ("x *= 1.0 / y", "x = x * (1.0 / y)"),
        ("w -= lr * g", "w = w - lr * g"),
        ("x -= a - b", "x = x - (a - b)"),
        ("x @= y", "x = x @ y"),
        ("self.h //= y", "self.h = self.h // y"),
        ("x.data += y", "x = x + y"),
        ("x.mul_(y, alpha=2)", "x = x.mul(y, alpha=2)"),
        ("x.data.clamp_(0, 1)", "x = x.clamp(0, 1)"),
        ("x.detach().mul_(2)", "x = x.mul(2)"),
        ("y = x.relu_()", "y = x.relu()"),
        ("y = torch.relu_(x)", "y = torch.relu(x)"),
        ("torch.relu_(x)", "x = torch.relu(x)"),
        ("torch.nn.init.zeros_(x)", "x = torch.nn.init.zeros(x)"),
        ("x[0].data += y", None),
        ("F.relu(x, inplace=True)", "x = F.relu(x)"),
        ("y = F.dropout(x, 0.5, inplace=True)", "y = F.dropout(x, 0.5)"),
        ("y = F.relu(inplace=True, input=x)", "y = F.relu(input=x)"),
        ("y = F.relu(x, inplace=False)", None),
        ("x[0] = v", "x = x.clone()"),
        ("x[0] += v", "x = x.clone()"),
        ("x.data[0] = v", "x = x.clone()"),
        ("self.h[0][1] = v", "self.h = self.h.clone()"),
        ("x[0].mul_(2)", "x = x.clone()"),
        ("torch._foreach_mul_([x], 2)", None),
        ("x.zero_()", "x = x.clone()"),
        ("f(x)[0] = v", None),
        ("f(x).zero_()", None),
        ("lib.write(x)", None),
    ],
)
def test_statement(line: str, first: str | None) -> None:
    found = changes(f"import torch\ndef f():\n    {line}  # W\n", used=None)
    if first is None:
        assert found == []
    else:
        assert added(found[0])[0].partition("  # W")[0] == first


def test_arrays_are_copied_where_numpy_is_used() -> None:
    found = changes("import numpy as np\nx[0] = np.pi  # W\n", used=None)
    assert [added(change)[0] for change in found] == ["x = x.clone()", "x = x.copy()"]


def test_the_place_where_a_module_is_made() -> None:
    found = changes(
        """
        class Net:
            def __init__(self):
                self.a = nn.ReLU(inplace=True)
                self.b = nn.Sequential(nn.Linear(2, 2), nn.ELU(0.5, inplace=True))

            def forward(self, x):
                return self.a(x)  # W
        """,
        used=None,
    )
    assert [added(change) for change in found] == [
        ["self.a = nn.ReLU()"],
        ["self.b = nn.Sequential(nn.Linear(2, 2), nn.ELU(0.5))"],
        ["self.a = nn.ReLU()", "self.b = nn.Sequential(nn.Linear(2, 2), nn.ELU(0.5))"],
    ]


def test_a_leaf_is_updated_under_no_grad_with_what_follows() -> None:
    source = "import torch\nw -= w.grad  # W\nb -= b.grad\nprint(w)\n"
    (change,) = changes(source, code="INP104", used=None)
    assert (
        change.after
        == b"import torch\nwith torch.no_grad():\n    w -= w.grad  # W\n    b -= b.grad\nprint(w)\n"
    )


STEPS = """
def f():
    a_loss, b_loss = model()
    b.zero_grad()
    b_loss.backward()
    # the critic
    b.step()  # W
    a.zero_grad()
    a_loss.backward()
    a.step()
"""


def test_backward_goes_before_the_other_optimizers_zero_grad() -> None:
    found = changes(STEPS, code="INP103")
    order = [line.strip() for line in found[0].after.decode().splitlines()]
    assert order[3:9] == [
        "a.zero_grad()", "a_loss.backward()", "b.zero_grad()", "b_loss.backward()",
        "# the critic", "b.step()  # W",
    ]  # fmt: skip
    assert [line.strip() for line in found[1].after.decode().splitlines()][5:9] == [
        "a.zero_grad()", "a_loss.backward()", "# the critic", "b.step()  # W",
    ]  # fmt: skip


def test_a_call_that_writes_goes_after_backward() -> None:
    (change,) = changes(
        """
        def clip(net):
            net.weight.data.clamp_(-1, 1)  # W clip

        def f():
            loss = net(x)
            if step:
                helper.clip(net)
            loss.backward()
        """,
        code="INP103",
    )
    assert change.after.endswith(b"    loss.backward()\n    if step:\n        helper.clip(net)\n")


def test_parameters_are_not_written_to_copies() -> None:
    assert changes("w.data.clamp_(0, 1)  # W\n", code="INP103", used=None) == []


def test_everything_else_stays_as_it_is() -> None:
    text = "# -*- coding: latin-1 -*-\r\n\r\nx  +=  y  # \xe9 W\r\nif  a :\r\n\tb = '\xfc'"
    finding = Finding("INP102", "confirmed", TensorInfo("x", (2,), "float32"), modified=Site("m.py", 3, "f"))
    change = suggest(finding, lambda path: text.encode("latin-1"))[0]
    assert change.after == text.replace("x  +=  y", "x = x + y").encode("latin-1")
    assert "+x = x + y  # \xe9 W" in change.diff()


def test_two_statements_on_a_line_are_left_alone() -> None:
    assert changes("x += y; z = 1  # W\n", used=None) == []


@pytest.mark.parametrize(
    "data", [b"x += (\n", b"x += 1\0\n", b"# -*- coding: nonsense -*-\nx += 1\n", b"x = '\xff'\n"]
)
def test_what_cannot_be_parsed(data: bytes) -> None:
    finding = Finding("INP102", "confirmed", TensorInfo(None, (), "float32"), modified=Site("m.py", 1, "f"))
    with pytest.raises(ValueError, match="libcst cannot parse it"):
        suggest(finding, lambda path: data)


def test_changes_of_one_file_come_together_unless_they_meet() -> None:
    before = b"a\nb\nc\nd\n"
    one, two = (
        Change("m", "", before, b"A\nb\nc\nd\n", "utf-8"),
        Change("m", "", before, b"a\nb\nc\nx\nd\n", "utf-8"),
    )
    three = Change("m", "", before, b"AA\nb\nc\nd\n", "utf-8")
    assert merged([one, two, three]) == (b"A\nb\nc\nx\nd\n", [three])
