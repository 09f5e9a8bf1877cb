"""The page `docs/silent-kinds.md`, rendered from what was observed, and the README's extract from it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from pytest_inplace.reports.findings import Finding
from tests.silent_kinds.observe import RIGHT, Observation, Outcome

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "silent-kinds.md"
README = ROOT / "README.md"
IN_README = (
    "data_write", "numpy_write", "fused_adamw", "conv_data_swap", "kron", "batchnorm_modes",
    "preserved_buffer", "compiled_input", "ctx_attribute", "not_marked_dirty", "tensor_hook",
    "checkpoint_dict", "save_on_cpu",
)  # fmt: skip
COLUMNS = (
    "what happens",
    "plain PyTorch",
    "anomaly mode",
    "gradcheck",
    "allow_mutation_on_saved_tensors",
    "pytest-inplace",
)
HEADER = f"| {' | '.join(COLUMNS)} |\n| {' | '.join('---' for _ in COLUMNS)} |\n"
INTRODUCTION = """\
# What each tool sees

Each row is a small program, linked by its name, that was run under each tool. A test runs them again and
compares; `python -m tests.silent_kinds` writes this page.

* *Plain PyTorch*: whether it raises an error, and if not, how far off the gradients are: `|g - r| / |r|` over
  all of them, rounded to one digit. The right ones, `r`, are from the same program without the defect.
* *Anomaly mode*: the same under `torch.autograd.set_detect_anomaly(True)`.
* *gradcheck*: whether `torch.autograd.gradcheck` fails on the program, which for this is written as a pure
  function of its leaves, in float64, with the write inside.
* *allow_mutation_on_saved_tensors*: the same under `torch.autograd.graph.allow_mutation_on_saved_tensors()`,
  which reports nothing, but copies what it sees being overwritten: "right" means that this was enough.
* *pytest-inplace*: the rule, the statement that it names, and how far off it says the gradients are.
"""


def percent(off: float) -> str:
    """One significant digit: stable, whatever a machine does with the last bits."""
    if off < RIGHT:
        return "0%"
    return f"{float(f'{off * 100:.0e}'):.15g}%"


def outcome(outcome: Outcome) -> str:
    if outcome.error is not None:
        return f"raises {outcome.error}"
    assert outcome.off is not None
    return "right" if outcome.off < RIGHT else f"silent, {percent(outcome.off)} off"


def anomaly(observation: Observation) -> str:
    text = outcome(observation.anomaly)
    if observation.saved_line in observation.anomaly.traceback:
        text += ", names the line that saved"
    return text


def plugin(observation: Observation) -> str:
    found = "; ".join(finding(each) for each in observation.findings)
    changed = observation.plugin.error != observation.plain.error
    if changed or not found:
        found = "; ".join(filter(None, [outcome(observation.plugin), found]))
    return found


def finding(finding: Finding) -> str:
    parts = [finding.code if finding.state == "confirmed" else f"{finding.code} ({finding.state})"]
    source = finding.modified and (finding.modified.source or "").partition("  #")[0].strip()
    parts.append(f"`{source}`" if source else "no line")
    if finding.relative_error is not None:
        parts.append(f"{percent(finding.relative_error)} off")
    return ", ".join(parts)


def row(observation: Observation) -> str:
    name = observation.kind.name
    cells = [
        f"{observation.title} [{name}](../tests/silent_kinds/programs/{name}.py)",
        outcome(observation.plain),
        anomaly(observation),
        observation.gradcheck,
        outcome(observation.mutation)
        + (", for nothing is compiled under it" if observation.kind.compiled else ""),
        plugin(observation),
    ]
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"


def summary(silent: Sequence[Observation]) -> str:
    judged = [o for o in silent if not o.gradcheck.startswith("n/a")]
    seen = [o for o in silent if o.anomaly.error is not None]
    failing = [o for o in judged if o.gradcheck != "passes"]
    right = [o for o in silent if o.mutation.off is not None and o.mutation.off < RIGHT]
    found = [o for o in silent if o.findings]
    lines = [o for o in found if any(f.modified and f.modified.line == o.written_line for f in o.findings)]
    text = (
        f"Of {len(silent)} kinds that plain PyTorch lets pass, anomaly mode sees {len(seen)}. gradcheck "
        f"fails on {len(failing)} of the {len(judged)} that can be put to it, and names no line. "
        f"allow_mutation_on_saved_tensors mends {len(right)} and reports none. pytest-inplace finds "
        f"{len(found)} and names the line of {len(lines)}."
    )
    return textwrap.fill(text, 110) + "\n"


def page(observations: Sequence[Observation]) -> str:
    groups = {
        plain: [o for o in observations if o.kind.plain == plain] for plain in ("silent", "raises", "right")
    }
    sections = [
        ("Silent in plain PyTorch", summary(groups["silent"]) + "\n", groups["silent"]),
        ("For contrast: loud in plain PyTorch", "", groups["raises"]),
        ("For contrast: harmless", "", groups["right"]),
    ]
    parts = [INTRODUCTION]
    for title, text, members in sections:
        parts.append(f"## {title}\n\n{text}{HEADER}" + "".join(row(member) for member in members))
    return "\n".join(parts)


def extract(text: str) -> str:
    """Some rows of the page, without the columns that a first look does not need."""
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if len(cells) == len(COLUMNS) and "](" in cells[0]:
            title, _, link = cells[0].rpartition(" [")
            name, _, target = link.rstrip(")").partition("](")
            rows[name] = (
                f"[{title.rstrip('.')}]({target.removeprefix('../')})",
                cells[1],
                cells[2],
                cells[5],
            )
    header = "| what happens | plain PyTorch | anomaly mode | pytest-inplace |\n| --- | --- | --- | --- |\n"
    return header + "".join("| " + " | ".join(rows[name]) + " |\n" for name in IN_README)


def readme_with(table: str) -> str:
    """The README with this table between its marks."""
    text = README.read_text(encoding="utf-8")
    begin, end = "<!-- silent kinds: begin -->\n", "<!-- silent kinds: end -->"
    before, _, rest = text.partition(begin)
    return before + begin + table + end + rest.partition(end)[2]
