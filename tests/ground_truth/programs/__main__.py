"""Counts of labels: ``python -m tests.ground_truth.programs --seeds 0:2000 --labels-only``."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

import torch

from .grammar import GROUPS, LATENT, MAIN, from_seed
from .labels import DISCARDED, describe, label


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ground_truth.programs", description=__doc__)
    parser.add_argument("--seeds", default="0:400", help="a range A:B of seeds")
    parser.add_argument("--group", choices=GROUPS, default=MAIN)
    parser.add_argument("--labels-only", action="store_true", help="do not run the plugin's engine")
    parser.add_argument("--show", type=int, help="print label, lines and source of one seed")
    parser.add_argument(
        "--reduce", action="store_true", help="with --show: the smallest program that disagrees"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.show is not None:
        return show(options.show, options.group, options.reduce)
    first, last = map(int, options.seeds.split(":"))
    counts, notes, latents, wrong = Counter[str](), Counter[str](), Counter[str](), 0
    one_line, started = 0, time.perf_counter()
    for seed in range(first, last):
        found = label(from_seed(seed, options.group))
        counts[found.kind] += 1
        notes[found.note[:70]] += bool(found.note)
        latents[found.latent] += options.group == LATENT
        one_line += bool(found.lines and len(found.lines.written) == 1)
        if not options.labels_only and found.kind != DISCARDED:
            from .compare import disagreements

            complaints = disagreements(found)
            wrong += bool(complaints)
            for complaint in complaints:
                print(f"{found.program.name} ({found.kind}): {complaint}", flush=True)
    total = sum(counts.values())
    print(f"{total} programs of group {options.group} in {time.perf_counter() - started:.1f} s")
    for kind, count in counts.most_common():
        print(f"  {kind:12} {count:6} {count / total:6.1%}")
    print(f"  exactly one harmful line: {one_line}")
    for title, counter in (("notes", notes), ("latent", latents)):
        for note, count in counter.most_common():
            if note and count:
                print(f"  {title}: {count:5} {note}")
    if not options.labels_only:
        print(f"  disagreements: {wrong}")
    return 1 if wrong else 0


def show(seed: int, group: str, reduce: bool) -> int:
    found = label(from_seed(seed, group))
    if reduce:
        from .compare import disagreements, reduced

        found = label(reduced(found.program))
        print("\n".join(disagreements(found)))
    print(describe(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
