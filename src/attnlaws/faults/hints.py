"""What is told of a broken target that no named fault explains: a fitted trace, the keys it sees, what its breaks have in common."""

from __future__ import annotations

import numpy as np

from ..judge.bounds import forward_random
from ..judge.signature import THRESHOLD, Fit, fit_signatures
from ..laws.trial import Crashed, Evidence, Refused, Session, Trial
from ..problems.draw import covering
from ..problems.problem import Problem
from ..problems.wants import Wants
from ..targets.call import Call
from ..targets.target import Target
from ..targets.trying import FAILS, effective_mask, size_of

#: the share of the error that one trace must explain to be told
CLEAR = 0.9


def hints(target: Target, witnesses: tuple[Problem, ...], seed: int = 0) -> tuple[str, ...]:
    """Sentences about a broken target: the trace fitted to its error, its effective mask, and the common ground of breaks."""
    trial = _plain_trial(target, seed)
    found = [] if trial is None else [_trace(trial), _mask(trial)]
    return tuple(line for line in [*found, common(witnesses)] if line)


def _plain_trial(target: Target, seed: int) -> Trial | None:
    """A trial on the first plain float32 (or float64) problem that fits."""
    dtype = next((d for d in ("float32", "float64") if d in target.abilities.dtypes), None)
    wants = Wants(
        dtypes=(dtype,) if dtype else None, masks=("none",), bias=False, scale=False, grouped=False, small=True
    )
    if dtype is None or wants.missing(target.abilities, target.conventions):
        return None
    problem = next(covering(wants, target.abilities, target.conventions, seed))
    return Trial(target, problem, Session(), Evidence())


def _dense(trial: Trial) -> Call:
    """Independent normal entries, 48 keys: what the fit of a trace is for."""
    a, rng = trial.abilities, np.random.Generator(np.random.Philox(key=[7, 11]))
    batch, heads, size = (2 if a.batch else 1), (2 if a.heads else 1), size_of(trial.target)
    shape = (batch, heads, 48, size)
    query, key, value = (rng.standard_normal(shape).astype(np.float32).astype(float) for _ in range(3))
    return Call(query, key, value, trial.call.dtype)


def _trace(trial: Trial) -> str:
    """The first-order alternative that explains most of the error on a dense call, where it explains nearly all of it."""
    call = _dense(trial)
    try:
        output = trial.run(call).output
    except (Crashed, Refused):
        return ""
    exact = trial.exact(call)
    error = output - exact.output
    precision = trial.ladder(call.dtype)[0]
    if not np.isfinite(error).all() or not (np.abs(error) > trial.bound(call, precision, exact)).any():
        return ""
    _, sigma = forward_random(call.query, call.key, call.value, exact, trial.scale(call), precision)
    fits = fit_signatures(
        call.query, call.key, call.value, exact, error, trial.scale(call), precision, np.full_like(sigma, sigma.mean())
    )
    best: Fit | None = max((f for f in fits if abs(f.z) > THRESHOLD), key=lambda f: f.removed, default=None)
    if best is None or best.removed < CLEAR:
        return ""
    return (
        f"the error on 48 dense keys is to {best.removed:.0%} that of {best.words} "
        f"(coefficient {best.estimate:.4g} +- {best.error:.1g})"
    )


def _mask(trial: Trial) -> str:
    """Which keys have weight with q = 0 in a small call, causal where the target can be, where that is not as it should be."""
    a = trial.abilities
    call = _dense(trial)
    call = call.but(query=call.query[:, :, :4], key=call.key[:, :, :4], value=call.value[:, :, :4])
    if trial.conventions.causal == "flag" and a.causal:
        call = call.but(causal=True)
    try:
        seen = effective_mask(trial.target, call, strict=True)
    except FAILS:
        return ""
    truth = trial.allowed_pairs(call)
    if (seen == truth).all():
        return ""
    b, h = (int(n) for n in np.argwhere((seen != truth).any((2, 3)))[0])
    grids = ("/".join("".join("1" if x else "0" for x in row) for row in grid[b, h]) for grid in (seen, truth))
    causal = "causal, " if trial.triangle_applies() or call.causal else ""
    got, want = grids
    return f"with q = 0 ({causal}4 keys) the keys with weight are {got}, not {want} (one row a query)"


def common(witnesses: tuple[Problem, ...]) -> str:
    """What all smallest witnesses need: a causal call, a mask, many keys, a dtype."""
    if not witnesses:
        return ""
    words = []
    for name, has in (
        ("a causal call", lambda p: p.causal),
        ("a mask", lambda p: p.mask != "none"),
        ("an additive mask", lambda p: p.bias),
        ("a scale", lambda p: p.scale is not None),
        ("grouped heads", lambda p: p.heads != p.kv_heads),
        ("several heads", lambda p: p.heads > 1),
        ("several samples", lambda p: p.batch > 1),
    ):
        if all(has(p) for p in witnesses):
            words.append(name)
    for name in ("keys", "queries", "head_dim"):
        least = min(getattr(p, name) for p in witnesses)
        if least > 4:
            words.append(f"{least} {name.replace('head_dim', 'channels')} or more")
    dtypes = {p.dtype for p in witnesses}
    if len(dtypes) == 1 and dtypes != {"float32"}:
        words.append(f"{dtypes.pop()} inputs")
    options = frozenset.intersection(*(p.options for p in witnesses))
    words += [
        {"window": "a window", "softcap": "a soft cap", "alibi": "ALiBi slopes"}.get(o, o) for o in sorted(options)
    ]
    return f"every smallest witness has {', '.join(words)}" if words else ""
