"""Record the reports as they are now: ``python -m tests.reports``."""

from __future__ import annotations

from tests.reports.render import EXPECTED, blocks

EXPECTED.mkdir(exist_ok=True)
for program, text in blocks([]).items():
    (EXPECTED / f"{program}.txt").write_text(text, encoding="utf-8")
    print(f"recorded {program}")
