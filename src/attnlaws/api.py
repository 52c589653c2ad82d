"""The Python face: check, diff, probe, parametrize."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .report.case import FOLDER, write_case
from .report.known_file import read as known_failures
from .report.script import write_script
from .run.check import only_dtypes, run_checks
from .run.check_module import run_module_checks
from .run.check_part import run_part_checks
from .run.diff import PROBLEMS, Difference, run_diff
from .run.diff_models import ModelDifference, run_model_diff
from .run.expect import expected
from .run.known import Known
from .run.ledger import COULD_NOT_TELL, HELD, NOT_APPLICABLE, Report
from .run.selection import select
from .targets.address import adapt_module, kind_at, load_target
from .targets.build import is_layer, makes_layer, resolved
from .targets.conventions import declared
from .targets.layer import LayerTarget
from .targets.model import ModelTarget
from .targets.part import Part, taken_as
from .targets.probe import adapt
from .targets.probe_model import takes_tokens
from .targets.signature import CannotAdapt, callable_by_name
from .targets.target import Target

AnyTarget = Target | LayerTarget | ModelTarget | Part


def target_of(
    target: Any,
    *,
    device: str = "cpu",
    conventions: Mapping[str, str] | None = None,
    layer: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    part: str | None = None,
) -> AnyTarget:
    """A target out of a function, a module, a name, or a target. Conventions are declared here, or found by the probe;
    `layer` declares those of a layer, `model` those of a model; `part` says that it is a part of a model, and of which kind
    ("sampler", "rotation", ...).

    Raises CannotAdapt, NoSuchTarget, NoDevice or UnknownChoice.
    """
    if part is not None:
        return load_target(f"{target} as {part}") if isinstance(target, str) else taken_as(part, _name(target), target)
    if isinstance(target, AnyTarget):
        return target
    if isinstance(target, str):
        return load_target(target, device=device)
    made = resolved(target, None, getattr(target, "__qualname__", type(target).__qualname__))
    if made is not None:
        kind = type(made[0])
        name = f"{kind.__module__}:{kind.__qualname__}"
        return adapt_module(*made, name=name, device=device, layer=layer or {}, model=model or {})
    function = callable_by_name(target)
    return adapt(function, name=_name(function), device=device, declared=declared(dict(conventions or {})))


def _name(target: Any) -> str:
    name = getattr(target, "__qualname__", None) or type(target).__qualname__
    module = getattr(target, "__module__", None) or type(target).__module__
    return f"{module}:{name}"


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
    layer: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    part: str | None = None,
    known: str | Path | None = None,
) -> Report:
    """Try every law on an attention function, a layer or a model; the report prints itself.

    `target` is a function of query, key, value and options, a module from (B, L, E) to (B, L, E), one from tokens (B, L) to
    logits (B, L, V), or the name of one. `part` says that it is a part of a model, such as "sampler" or "rotation". `laws` are names
    or families, `profile` is "quick" or "full", `budget` a time in seconds. `known` is a list of known failures
    (docs/reports.md).
    Example: attnlaws.check(my_attention).raise_for_failures()
    """
    made = target_of(target, device=device, conventions=conventions, layer=layer, model=model, part=part)
    entries = () if known is None else known_failures(Path(known))
    return expected(run(made, laws=laws, profile=profile, budget=budget, seed=seed, dtypes=dtypes), entries)


def run(target: AnyTarget, **options: Any) -> Report:
    """The laws of its kind on a target; the options are those of `run_checks`."""
    if isinstance(target, Target):
        return run_checks(target, **options)
    if isinstance(target, Part):
        return run_part_checks(target, **options)
    return run_module_checks(target, **options)


def function_of(target: Any, *, device: str = "cpu", conventions: Mapping[str, str] | None = None) -> Target:
    """A target that is a function of query, key and value. Raises CannotAdapt for a layer or a model."""
    made = target_of(target, device=device, conventions=conventions)
    if not isinstance(made, Target):
        raise CannotAdapt(f"{made.name} is a {made.LAWS}; this takes functions of query, key and value")
    return made


def diff(
    first: Any,
    second: Any,
    *,
    seed: int = 0,
    problems: int = PROBLEMS,
    device: str = "cpu",
    dtypes: Sequence[str] | None = None,
) -> Difference | ModelDifference:
    """Where two attention functions differ, and which convention or fault explains it; the report prints itself.

    Each is called in its own words: axes, the meaning of True in a mask. Of two models the first part is found whose results
    differ. Example: print(attnlaws.diff(mine, theirs))
    """
    a, b = target_of(first, device=device), target_of(second, device=device)
    if isinstance(a, ModelTarget) and isinstance(b, ModelTarget):
        return run_model_diff(a, b, seed=seed, dtypes=dtypes)
    return run_diff(function_of(a), function_of(b), seed=seed, problems=problems, dtypes=dtypes)


def vectors(
    target: Any = None,
    out: str | Path = "vectors",
    *,
    cases: int = 200,
    seed: int = 0,
    device: str = "cpu",
    dtypes: Sequence[str] | None = None,
) -> int:
    """Write test vectors into a folder, for a target by its conventions, or for plain attention by torch's; how many.

    Raises FileExistsError where the folder holds other files, ValueError for a dtype that the target doesn't take.
    """
    from .report.vectors import plain_target, write_vectors

    made = plain_target() if target is None else function_of(target, device=device)
    return write_vectors(only_dtypes(made, dtypes), Path(out), cases=cases, seed=seed)


def probe(target: Any, *, device: str = "cpu") -> AnyTarget:
    """The target with the conventions and abilities that the probe found; `attnlaws.card(target)` prints them."""
    return target_of(target, device=device)


def card(target: AnyTarget) -> str:
    """What was found out about a target as text."""
    from .report.card import card_of

    return card_of(target)


class _OneLaw:
    """One law, bound to a target: call it to try the law."""

    def __init__(
        self, name: str, target: Callable[[], AnyTarget], profile: str, seed: int, known: Sequence[Known]
    ) -> None:
        self.name, self._target, self._profile, self._seed, self._known = name, target, profile, seed, known

    def __call__(self) -> None:
        __tracebackhide__ = True
        report = check_one(self._target(), self.name, profile=self._profile, seed=self._seed)
        conclude(expected(report, self._known))

    def __repr__(self) -> str:
        return f"<law {self.name}>"


def parametrize(
    target: Any,
    *,
    laws: Sequence[str] | None = None,
    profile: str = "quick",
    seed: int = 0,
    known: str | Path | None = None,
) -> Any:
    """Decorate a test with one item a law: `def test_mine(law): law()`. The target is adapted when the first law runs.

    `known` is a list of known failures (docs/reports.md); these are expected to fail, strictly.
    """
    import pytest

    made: list[AnyTarget] = []

    def once() -> AnyTarget:
        if not made:
            made.append(target_of(target))
        return made[0]

    chosen = select(laws, kind_of(target))
    entries = () if known is None else known_failures(Path(known))
    return pytest.mark.parametrize(
        "law", [_OneLaw(law.name, once, profile, seed, entries) for law in chosen], ids=[law.name for law in chosen]
    )


def kind_of(target: Any) -> str:
    """The kind of law for a target that is not adapted yet: "model", "layer", "part" or "attention"."""
    if isinstance(target, str):
        return kind_at(target)
    if isinstance(target, AnyTarget):
        return target.LAWS
    if is_layer(target) or makes_layer(target, "the factory"):
        made = resolved(target, None, getattr(target, "__qualname__", type(target).__qualname__))
        return "model" if made is not None and takes_tokens(made[0]) else "layer"
    return "attention"


def conclude(report: Report, folder: Path | None = None) -> None:
    """End a pytest item as the report on its one law ends: fail with the block, skip what was not compared, with the reason,
    and tell a known failure as an expected one.
    """
    __tracebackhide__ = True
    import pytest

    from .report.terminal import failure_block

    (verdict,) = report.verdicts
    if verdict.law in report.known:
        pytest.xfail(f"known: {report.known[verdict.law]}")
    told = "".join(f"known failure ({entry}): {words}\n" for entry, words in report.outdated)
    if verdict.red:
        pytest.fail(told + failure_block(verdict, save_failures(report, folder)), pytrace=False)
    if told:
        pytest.fail(f"[XPASS(strict)] {told}", pytrace=False)
    if verdict.status == NOT_APPLICABLE:
        pytest.skip(f"not applicable: {verdict.reason}")
    if verdict.status == COULD_NOT_TELL and not report.out_of_time:  # as on the command line: told, and not red
        pytest.skip(f"could not tell: {verdict.reason}")
    if verdict.status != HELD:
        pytest.fail(f"{verdict.status}: {verdict.reason}", pytrace=False)
    if report.undetected:
        pytest.fail(f"held, but so would these impostors: {', '.join(report.undetected)}", pytrace=False)


def check_one(target: AnyTarget, law: str, *, profile: str = "quick", seed: int = 0) -> Report:
    """The report on one law."""
    return run(target, laws=[law], profile=profile, seed=seed)


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
