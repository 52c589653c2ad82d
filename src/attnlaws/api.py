"""The Python face: check, diff, probe, parametrize."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .report.case import FOLDER, write_case
from .report.script import write_script
from .run.check import run_checks, select
from .run.diff import PROBLEMS, Difference, run_diff
from .run.ledger import COULD_NOT_TELL, HELD, NOT_APPLICABLE, Report
from .targets.address import load_target
from .targets.conventions import declared
from .targets.probe import adapt
from .targets.target import Target


def target_of(target: Any, *, device: str = "cpu", conventions: Mapping[str, str] | None = None) -> Target:
    """A target out of a function, a name, or a target. Conventions are declared here, or found by the probe.

    Raises CannotAdapt, NoSuchTarget or UnknownChoice.
    """
    if isinstance(target, Target):
        return target
    if isinstance(target, str):
        return load_target(target, device=device)
    name = getattr(target, "__qualname__", None) or type(target).__qualname__
    module = getattr(target, "__module__", None) or type(target).__module__
    return adapt(target, name=f"{module}:{name}", device=device, declared=declared(dict(conventions or {})))


def check(
    target: Any,
    *,
    laws: Sequence[str] | None = None,
    profile: str = "quick",
    budget: float | None = None,
    seed: int = 0,
    device: str = "cpu",
    dtypes: Sequence[str] | None = None,
    conventions: Mapping[str, str] | None = None,
) -> Report:
    """Try every law on an attention function; the report prints itself.

    `target` is a function of query, key, value and options, or the name of one. `laws` are names or families,
    `profile` is "quick" or "full", `budget` a time in seconds. Example: attnlaws.check(my_attention).raise_for_failures()
    """
    made = target_of(target, device=device, conventions=conventions)
    return run_checks(made, laws=laws, profile=profile, budget=budget, seed=seed, dtypes=dtypes)


def diff(
    first: Any,
    second: Any,
    *,
    seed: int = 0,
    problems: int = PROBLEMS,
    device: str = "cpu",
    dtypes: Sequence[str] | None = None,
) -> Difference:
    """Where two attention functions differ, and which convention or fault explains it; the report prints itself.

    Each is called in its own words: axes, the meaning of True in a mask. Example: print(attnlaws.diff(mine, theirs))
    """
    made = target_of(first, device=device), target_of(second, device=device)
    return run_diff(*made, seed=seed, problems=problems, dtypes=dtypes)


def probe(target: Any, *, device: str = "cpu") -> Target:
    """The target with the conventions and abilities that the probe found; `attnlaws.card(target)` prints them."""
    return target_of(target, device=device)


def card(target: Target) -> str:
    """The conventions of a target as text."""
    from .report.terminal import card as render

    return render(target)


class _OneLaw:
    """One law, bound to a target: call it to try the law."""

    def __init__(self, name: str, target: Callable[[], Target], profile: str, seed: int) -> None:
        self.name, self._target, self._profile, self._seed = name, target, profile, seed

    def __call__(self) -> None:
        __tracebackhide__ = True
        conclude(check_one(self._target(), self.name, profile=self._profile, seed=self._seed))

    def __repr__(self) -> str:
        return f"<law {self.name}>"


def parametrize(target: Any, *, laws: Sequence[str] | None = None, profile: str = "quick", seed: int = 0) -> Any:
    """Decorate a test with one item a law: `def test_mine(law): law()`. The target is adapted when the first law runs."""
    import pytest

    made: list[Target] = []

    def once() -> Target:
        if not made:
            made.append(target_of(target))
        return made[0]

    chosen = select(laws)
    return pytest.mark.parametrize(
        "law", [_OneLaw(law.name, once, profile, seed) for law in chosen], ids=[law.name for law in chosen]
    )


def conclude(report: Report, folder: Path | None = None) -> None:
    """End a pytest item as the report on its one law ends: fail with the block, skip what was not compared, with the reason."""
    __tracebackhide__ = True
    import pytest

    from .report.terminal import failure_block

    (verdict,) = report.verdicts
    if verdict.red:
        pytest.fail(failure_block(verdict, save_failures(report, folder)), pytrace=False)
    if verdict.status == NOT_APPLICABLE:
        pytest.skip(f"not applicable: {verdict.reason}")
    if verdict.status == COULD_NOT_TELL and not report.out_of_time:  # as on the command line: told, and not red
        pytest.skip(f"could not tell: {verdict.reason}")
    if verdict.status != HELD:
        pytest.fail(f"{verdict.status}: {verdict.reason}", pytrace=False)
    if report.undetected:
        pytest.fail(f"held, but so would these impostors: {', '.join(report.undetected)}", pytrace=False)


def check_one(target: Target, law: str, *, profile: str = "quick", seed: int = 0) -> Report:
    """The report on one law."""
    return run_checks(target, laws=[law], profile=profile, seed=seed)


def save_failures(report: Report, folder: Path | None = None) -> Report:
    """Write a case and a script for each failure; the report with their paths."""
    where = Path(FOLDER) if folder is None else folder
    files: dict[str, tuple[str, str]] = {}
    for verdict in report.failures:
        if verdict.witness is None:
            continue
        case = write_case(verdict, report, where)
        script = write_script(verdict, report, where)
        files[verdict.law] = (str(case), "" if script is None else str(script))
    return replace(report, files=files)
