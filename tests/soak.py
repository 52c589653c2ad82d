"""Every right attention function of the zoo over many seeds: `python tests/soak.py --seeds 200 [--only NAME ...]`.

Prints a line a function and ends with 1 where any law ever fails: no false alarm is allowed, ever.
"""

from __future__ import annotations

import argparse
import time
import warnings

from right_attention import RIGHT
from right_options import RIGHT_OPTIONS

from attnlaws import api
from attnlaws.run.check import run_checks


def main() -> int:
    """Run the soak; 0 where nothing was ever red."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--profile", default="glance", choices=("glance", "smoke", "quick"))
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    alarms = runs = problems = 0
    for right in [*RIGHT, *RIGHT_OPTIONS]:
        if options.only and right.name not in options.only:
            continue
        started = time.monotonic()
        target = api.target_of(right.function)
        red = 0
        for seed in range(options.first, options.first + options.seeds):
            report = run_checks(target, profile=options.profile, seed=seed)
            runs += 1
            problems += report.problems
            for verdict in report.failures:
                red += 1
                witness = verdict.witness.describe() if verdict.witness else ""
                print(f"  RED {right.name} seed {seed}: {verdict.law} {verdict.reason} [{witness}]", flush=True)
        alarms += red
        print(f"{right.name:<28} {options.seeds} seeds, {red} red, {time.monotonic() - started:.0f} s", flush=True)
    print(f"{runs} runs, {problems} problems, {alarms} false alarms")
    return int(alarms > 0)


if __name__ == "__main__":
    raise SystemExit(main())
