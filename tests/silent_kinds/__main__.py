"""Run all programs and write the page: ``python -m tests.silent_kinds``."""

from __future__ import annotations

import torch

from tests.silent_kinds.kinds import KINDS
from tests.silent_kinds.observe import observe
from tests.silent_kinds.table import PAGE, README, extract, page, readme_with

if __name__ == "__main__":
    torch.set_num_threads(1)
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page([observe(kind) for kind in KINDS]), encoding="utf-8")
    README.write_text(readme_with(extract(PAGE.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(PAGE.parent.parent)}")
