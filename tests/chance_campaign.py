"""The error rates of the laws of chance over many seeds: `python tests/chance_campaign.py --seeds 200 --out docs/error-rates.md`.

Whole runs of the statistics on right targets, which must not alarm; each wrong target, which must be red each time.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from chance_wrong import WRONG

import attnlaws
from attnlaws.api import AnyTarget, kind_of, target_of
from attnlaws.laws.load import laws_of
from attnlaws.laws.trial import Broken, Crashed, Evidence, Refused, Session, Unsuitable
from attnlaws.targets.shipped_parts import shipped_parts

RIGHT = (
    "torch.sdpa",
    "torch.nn:MultiheadAttention(embed_dim=16, num_heads=4, batch_first=True, dropout=0.1)",
    "attnlaws.reference.heads:MultiHeadAttention(d_in=12, d_out=12, context_length=40, num_heads=3, dropout=0.2)",
)


def of_chance(kind: str) -> list[str]:
    """The names of the laws of chance of one kind."""
    return [name for name, law in laws_of(kind).items() if law.chance]


def clean(targets: Sequence[AnyTarget], seed: int) -> tuple[int, list[str]]:
    """How many findings one whole run makes, and its alarms."""
    count, alarms = 0, []
    for target in targets:
        for verdict in attnlaws.check(target, laws=of_chance(kind_of(target)), seed=seed).verdicts:
            count += len(verdict.evidence.findings)
            if verdict.red:
                alarms.append(f"{target.name}: {verdict.law}: {verdict.reason}")
    return count, alarms


def broken(target: AnyTarget, name: str, seed: int) -> bool:
    """Whether a law is broken; tried as a check tries it, but not confirmed once more."""
    law = laws_of()[name]
    for problem in itertools.islice(law.covering(target, seed), 1 if law.chance else 12):
        try:
            law.attempt(target, problem, Session(), Evidence())
        except (Broken, Crashed):
            return True
        except (Unsuitable, Refused):
            continue
    return False


def main() -> None:
    """Run, print as it goes, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", choices=("right", "wrong"), help="one half; no page is written then")
    parser.add_argument("--after", default="", metavar="NAME", help="the wrong targets after this one")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(options.first, options.first + options.seeds)
    lines, started = [], time.monotonic()
    targets = [*map(target_of, RIGHT), *shipped_parts().values()] if options.only != "wrong" else []
    found = [clean(targets, seed) for seed in seeds]
    alarms = [alarm for _, some in found for alarm in some]
    seconds = (time.monotonic() - started) / len(seeds)
    tests = max(count for count, _ in found)
    print(
        f"{len(seeds)} whole runs of {tests} tests: {len(alarms)} alarms, {seconds:.1f} s a run",
        *alarms,
        sep="\n",
        flush=True,
    )
    names = [wrong.name for wrong in WRONG]
    rest = WRONG[names.index(options.after) + 1 :] if options.after else WRONG
    for wrong in rest if options.only != "right" else ():
        target = target_of(wrong.make(), layer=dict(wrong.layer) or None)
        red = sum(broken(target, wrong.law, seed) for seed in seeds)
        lines.append(f"| {wrong.name} | {wrong.law} | {red} of {len(seeds)} |")
        print(lines[-1], flush=True)
    if options.out and not options.only and not options.after:
        head = (
            "# Error rates of the laws of chance\n\nWritten by `python tests/chance_campaign.py --seeds "
            f"{options.seeds} --out docs/error-rates.md`.\n\n{len(seeds)} whole runs with fresh seeds on right targets ({tests} tests "
            f"each): {len(alarms)} alarms, {seconds:.1f} s a run on one core.\n\n| wrong | law | caught |\n|---|---|---|\n"
        )
        options.out.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
