"""``--inplace-suggest`` and ``--inplace-apply``, end to end: what is proved, what is not, what is written."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("libcst")

MODEL = """
import torch


def gate(x):
    g = torch.sigmoid(x)  # saved
    g += x
    return g


def clip(w):
    w.data.clamp_(max=1.5)


def triple(x):
    x.mul_(3)


def finish(loss):
    loss.backward()
"""
TESTS = """
import ctypes
import sys

import pytest
import torch

import helper
import model


@pytest.fixture
def w():
    return torch.tensor([1.0, 2.0], requires_grad=True)


def test_gate(w):
    model.gate(w).square().sum().backward()


def test_gate_again():
    x = torch.tensor([3.0], requires_grad=True)
    model.gate(x).sum().backward()


def test_clip(w):
    for _ in range(3):
        loss = (w * w).sum()
        model.clip(w)
        loss.backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
        w.grad = None
    assert w.max() < 2


def test_the_caller_relies_on_the_write(w):
    h = w.exp()
    model.triple(h)
    h.sum().backward()


def test_hidden_from_autograd(w):
    h = w.exp()
    h.data.clamp_(max=3)
    h.square().sum().backward()


def test_no_gradients(w):
    w.square().sum().backward()
    w -= 0.1 * w.grad


def test_cleared_by_c(w):
    h = w.exp()
    ctypes.memset(h.data_ptr(), 0, 4)
    model.finish(h.sum())


def test_source_is_nowhere():
    exec(compile(helper.SOURCE, "<made up>", "exec"), {"torch": torch})


def test_source_is_packed():
    sys.path.insert(0, "packed.zip")
    import packed

    packed.run()


def test_source_changes():
    helper.run()
    with open(helper.__file__, "a") as file:
        file.write("# later")
"""
BODY = "w = torch.ones(2, requires_grad=True)\nh = w.exp()\nh.data.mul_(2)\nh.sum().backward()\n"
RUN = "import torch\n\ndef run():\n" + "".join(f"    {line}\n" for line in BODY.splitlines())


def make(root: Path) -> Path:
    for folder in ("src", "tests"):
        (root / folder).mkdir(parents=True)
    (root / "pytest.ini").write_text("[pytest]\npythonpath = src\naddopts = -p no:cacheprovider\n")
    (root / "src" / "model.py").write_text(MODEL)
    (root / "src" / "helper.py").write_text(f"{RUN}\nSOURCE = {BODY!r}\n")
    (root / "tests" / "test_it.py").write_text(TESTS)
    with zipfile.ZipFile(root / "packed.zip", "w") as archive:
        archive.writestr("packed.py", RUN)
    return root


def run(root: Path, *arguments: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "CI"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--inplace-check", *arguments],
        cwd=root, env={**environment, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


class Suggested:
    """What one run under xdist suggested, by test, and what became of the files."""

    def __init__(self, root: Path) -> None:
        self.before = contents(make(root))
        self.output = run(root, "-n", "2", "--inplace-suggest")
        self.after = contents(root)
        section = self.output.partition("suggested changes =")[2].partition("short test summary")[0]
        self.entries = re.split(r"^\[\d+/\d+\] ", section, flags=re.M)[1:]

    def about(self, line: str) -> str:
        """The entry about the line of the test file or the model that has this text."""
        for name, text in (("src/model.py", MODEL), ("tests/test_it.py", TESTS), ("src/helper.py", RUN)):
            for number, each in enumerate(text.splitlines(), 1):
                if line in each:
                    (entry,) = [e for e in self.entries if e.startswith(f"{name}:{number}: ")]
                    return entry
        raise AssertionError(line)


@pytest.fixture(scope="module")
def suggested(tmp_path_factory: pytest.TempPathFactory) -> Suggested:
    return Suggested(tmp_path_factory.mktemp("suggested") / "project")


def test_a_proved_rewriting(suggested: Suggested) -> None:
    entry = suggested.about("g += x")
    assert "INP101: proved: compute a new tensor" in entry
    assert "not with 1 more that it fails" in entry
    assert "\n-    g += x\n+    g = g + x\n" in entry


def test_a_proved_move(suggested: Suggested) -> None:
    entry = suggested.about("clamp_(max=1.5)")
    assert "INP103: proved: call backward() before the write" in entry
    assert "\n+        loss.backward()\n         model.clip(w)\n-        loss.backward()\n" in entry


def test_a_change_that_loses_the_write_is_not_proved(suggested: Suggested) -> None:
    """``x = x.mul(3)`` in the function is clean, and the caller's loss is another one."""
    entry = suggested.about("x.mul_(3)")
    assert "INP101: untested: compute a new tensor\n    another loss is computed" in entry


def test_a_change_of_what_is_differentiated_is_not_proved(suggested: Suggested) -> None:
    """A clamp that autograd sees has another gradient than one that is hidden by ``.data``."""
    assert "\n+    h = h.clone()\n     h.data.clamp_" in suggested.about("h.data.clamp_(max=3)")


def test_without_gradients_nothing_is_proved(suggested: Suggested) -> None:
    (entry,) = [entry for entry in suggested.entries if "INP104" in entry.partition("\n")[0]]
    assert "untested: update under no_grad\n    with it the test passes and nothing is found, but" in entry
    assert "+    with torch.no_grad():\n+        w -= 0.1 * w.grad\n" in entry


def test_what_cannot_be_edited_says_why(suggested: Suggested) -> None:
    assert "no change is known for this kind of write" in suggested.about("ctypes.memset")
    assert "src/helper.py has changed since the run began" in suggested.about("    h.data.mul_(2)")
    assert "<made up> is not a file on disk" in suggested.output
    assert "packed.py is not a file on disk" in suggested.output


def test_suggesting_touches_nothing(suggested: Suggested) -> None:
    changed = {name for name in suggested.after if suggested.after[name] != suggested.before.get(name)}
    assert changed == {"src/helper.py"}  # by the test itself
    assert suggested.after["src/helper.py"].startswith(suggested.before["src/helper.py"] + b"# later")


def test_apply_writes_what_is_proved_and_nothing_else(tmp_path: Path) -> None:
    root = make(tmp_path / "project")
    tests = ("-k", "gate or clip")
    output = run(root, *tests, "--inplace-apply")
    assert "applied to src/model.py: 1\napplied to tests/test_it.py: 1\n" in output
    assert (root / "src" / "model.py").read_text() == MODEL.replace("g += x", "g = g + x")
    # That the mended tests are clean is a part of each proof.
    text = (root / "tests" / "test_it.py").read_text()
    (moved,) = re.findall(r"loss = \(w \* w\).sum\(\)\n(.*\n.*\n)", text)
    assert moved == "        loss.backward()\n        model.clip(w)\n"


def test_without_libcst(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "libcst" else find_spec(name)
    )
    for option in ("--inplace-suggest", "--inplace-apply"):
        result = pytester.runpytest_inprocess(option)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"*{option} needs libcst: pip install 'pytest-inplace?suggest?'"])
