"""Laws at the sizes of real models: several samples and heads, D = 64, more rows than a tile, with masks and gradients."""

from __future__ import annotations

from attnlaws.laws.law import law
from attnlaws.laws.trial import Trial
from attnlaws.problems.problem import Problem
from attnlaws.problems.wants import ALL, Wants
from attnlaws.targets.target import Target

#: rows that fill no tile, beyond one or two tiles of 64 and 128
ROWS = (131, 150, 193)
SIZE = 64


def _free(target: Target) -> str | None:
    """A function that loops in Python over samples takes seconds at such sizes."""
    if target.abilities.head_dims and SIZE not in target.abilities.head_dims:
        return f"takes no head size of {SIZE}"
    return None if target.abilities.samples_are_free else "runs Python code for each sample, or takes one"


def _large(trial: Trial, *, samples: int, heads: int, queries: int, keys: int) -> Trial:
    """The trial with its problem at a large size: the same mask, options and dtype."""
    p, a = trial.problem, trial.abilities
    square = not a.rectangular or (trial.triangle_applies() and not a.rectangular_causal)
    bottom = trial.triangle_applies() and trial.conventions.alignment == "bottom-right"
    queries = keys if square else min(queries, keys) if bottom or p.window else queries
    grouped = a.grouped and p.kv_heads != p.heads
    large: Problem = p.but(
        batch=1 if grouped else samples,
        heads=8 if grouped else heads if a.heads else 1,
        kv_heads=2 if grouped else heads if a.heads else 1,
        queries=queries,
        keys=keys,
        head_dim=SIZE,
        value_dim=SIZE,
        left=70 if p.left > 1 else p.left,
    )
    return Trial(trial.target, large, trial.session, trial.evidence)


@law(
    "layout.full-size",
    "the sizes of real models are computed like small ones, with masks, options and shared heads",
    wants=Wants(small=True, options=ALL, regimes=("normal",), scale=False),
    basis=("weights.oracle", "layout.sizes"),
    applies=_free,
    share=0.15,
)
def test_full_size(trial: Trial) -> None:
    """o = softmax(scale q k^T + mask) v with B = 3, H = 3, D = 64 and 131 to 193 queries and keys: past a tile of 64 and of 128, a third
    head and sample; or B = 1 and eight heads on two key heads.
    """
    rng = trial.rng
    queries, keys = (ROWS[int(n)] for n in rng.integers(0, len(ROWS), 2))
    large = _large(trial, samples=3, heads=3, queries=queries, keys=keys)
    large.agrees_with_oracle(large.run().output, large.call, "at a large size the output is not as the formula says")


@law(
    "gradients.full-size",
    "at the sizes of real models dq, dk and dv are the derivatives",
    wants=Wants(small=True, options=ALL, gradients=True, regimes=("normal",), scale=False),
    basis=("gradients.oracle", "layout.full-size"),
    applies=_free,
    share=0.04,
)
def test_gradients_full_size(trial: Trial) -> None:
    """As `gradients.oracle`, with D = 64, 260 queries and 131 to 193 keys, or as many keys as queries."""
    rng = trial.rng
    keys = ROWS[int(rng.integers(0, len(ROWS)))]
    large = _large(trial, samples=1, heads=1, queries=260, keys=260 if trial.triangle_applies() else keys)
    call = large.call
    upstream = rng.integers(-8, 9, (*call.query.shape[:3], call.value.shape[3])) / 4.0
    found = large.run(call, upstream=upstream, wanted=("query", "key", "value")).gradients
    exact, grads = large.exact(call), large.exact_gradients(call, upstream)
    factor = 2.0 if call.dtype == "float64" else 1.0
    for at, role in enumerate(("query", "key", "value")):
        gradient, want = found[role], getattr(grads, role)
        if gradient is None:
            large.require(not want.any(), f"no gradient reaches {role}", call)
            continue
        large.within(
            gradient,
            want,
            lambda p, at=at: factor * large.gradient_bounds(call, upstream, grads, p, exact)[at],  # type: ignore[misc]
            f"at a large size the gradient by {role} is not the derivative of the output",
            call=call,
            name=f"d{role}",
        )
