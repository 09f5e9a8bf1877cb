"""Counts for each label and each kind of disagreement: `python -m tests.ground_truth.operators --help`."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter

from .cases import QUICK
from .compare import Examine, Report, check_case, check_operator, find_examine
from .labels import KINDS
from .programs import operators
from .writes import NONE, WRITES


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.ground_truth.operators")
    parser.add_argument("--ops", metavar="REGEX", default="", help="operators that match")
    parser.add_argument("--limit", type=int, metavar="N", help="at most so many operators")
    parser.add_argument("--quick", action="store_true", help="only the subset that the tests run by default")
    parser.add_argument("--labels-only", action="store_true", help="don't import the plugin")
    parser.add_argument("--case", metavar="ID", help="only this case, in full")
    parser.add_argument("--show", type=int, default=5, metavar="N", help="disagreements of each kind")
    return parser.parse_args()


def _print_labels(report: Report) -> None:
    writes = (NONE, *WRITES)
    print(f"{'':12}" + "".join(f"{name:>12}" for name in (*writes, "all")))
    for kind in KINDS:
        counts = [report.labels[kind, name] for name in writes]
        print(f"{kind:12}" + "".join(f"{count:>12}" for count in (*counts, sum(counts))))


def _print_excluded(report: Report) -> None:
    reasons = Counter(item.reason for item in report.excluded)
    print(f"\nleft out: {len(report.excluded)}")
    for reason, count in reasons.most_common():
        names = sorted({item.operator for item in report.excluded if item.reason == reason})
        print(f"  {count:4}  {reason}: {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}")


def _print_disagreements(report: Report, show: int) -> None:
    print("\nverdicts by label:")
    for (label, codes), count in report.codes.most_common():
        print(f"  {count:6}  {label}: {codes}")
    kinds = Counter((d.label, d.kind) for d in report.disagreements)
    print(f"\ndisagreements: {len(report.disagreements)}")
    for (label, kind), count in kinds.most_common():
        print(f"  {count:6}  [{label}] {kind}")
        matching = [d for d in report.disagreements if (d.label, d.kind) == (label, kind)]
        for found in matching[:show]:
            print(f"          {found.case.id}\n            {found.detail[:300]}")
        by_operator = Counter(d.case.operator for d in matching)
        print("          by operator:", ", ".join(f"{o} {n}" for o, n in by_operator.most_common(12)))


def main() -> int:
    arguments = _arguments()
    examine: Examine | None = None
    if not arguments.labels_only:
        try:
            examine = find_examine()
        except ImportError as error:
            print(f"the plugin can't be imported ({error}); --labels-only works without it", file=sys.stderr)
            return 2
    if arguments.case:
        label, report = check_case(arguments.case, examine)
        print(label)
        print(*report.codes, *report.disagreements, sep="\n")
        return bool(report.disagreements)
    started = time.perf_counter()
    names = QUICK if arguments.quick else sorted(operators())
    chosen = [name for name in names if re.search(arguments.ops, name)][: arguments.limit]
    report = Report()
    for name in chosen:
        check_operator(name, examine, report)
    print(f"{report.cases} cases of {len(chosen)} operators in {time.perf_counter() - started:.0f} s\n")
    _print_labels(report)
    _print_excluded(report)
    silent = Counter(case.operator for case in report.silent_although_counted)
    print("\ngradients silently wrong although the version counter moved:", dict(silent) or "none")
    if examine is not None:
        _print_disagreements(report, arguments.show)
    return bool(report.disagreements)


if __name__ == "__main__":
    sys.exit(main())
