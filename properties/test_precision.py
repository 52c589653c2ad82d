"""Laws of precision: what is left between the output and the formula is rounding, of the precision that the card says."""

from __future__ import annotations

import numpy as np

from attnlaws.judge.bounds import forward_random
from attnlaws.judge.precision import Precision
from attnlaws.judge.signature import THRESHOLD, fit_signatures
from attnlaws.laws.law import law
from attnlaws.laws.trial import Broken, Trial
from attnlaws.problems.dtypes import round_to
from attnlaws.problems.wants import Wants
from attnlaws.targets.call import Call

#: rms(error / sigma) of correct kernels stays below 1 on generic inputs
RMS = 1.2


@law(
    "scores.precision",
    "the errors are those of rounding: none is a trace of another formula",
    wants=Wants(masks=("none",), bias=False, scale=False, regimes=("normal",), grouped=False, small=True),
    share=0.12,
    basis=("weights.oracle",),
)
def test_precision(trial: Trial) -> None:
    """|e| <= min(W, 6 sigma), rms(e / sigma) <= 1.2, and no named alternative fits e by more than 8 standard errors.

    On dense generic inputs, 64 keys or more: a scale off by 0.1 %, a denominator off by 0.1 %, a soft cap of 50, a
    dropped key, a softmax with one added to its denominator all show here in bfloat16 and float16.
    """
    call = _generic(trial)
    exact = trial.exact(call)
    output = trial.run(call).output
    trial.agrees_with_oracle(output, call, "the output is not softmax(scale q k^T) v", exact)
    error = output - exact.output
    factor = 2.0 if call.dtype == "float64" else 1.0
    ladder = trial.ladder(call.dtype)
    for step, precision in enumerate(ladder):
        bound, sigma = forward_random(call.query, call.key, call.value, exact, trial.scale(call), precision)
        rms = float(np.sqrt(np.mean((error / (factor * sigma)) ** 2)))
        worst = float(np.max(np.abs(error) / (factor * bound), initial=0.0))
        if rms <= RMS and worst <= 1.0:
            trial.session.precision[call.dtype] = trial.session.precision.get(call.dtype, 0) + step
            trial.evidence.add(error.size, worst)
            _no_trace(trial, call, error, precision, sigma * factor)
            return
    raise Broken(
        f"the errors are larger than {ladder[-1].name} rounding gives: rms(error / sigma) = {rms:.3g}, at most {RMS} allowed",
        call=call,
    )


def _generic(trial: Trial) -> Call:
    """A dense call with independent normal entries: 64 or 96 keys, head size 32 or 64."""
    rng = trial.rng
    batch = 2 if trial.abilities.batch else 1
    heads = 2 if trial.abilities.heads else 1
    taken = trial.abilities.head_dims
    sizes = [n for n in (32, 64) if not taken or n in taken] or [n for n in taken if 16 <= n <= 128]
    trial.suitable(bool(sizes))
    length, size = int(rng.choice([64, 96])), int(rng.choice(sizes))

    def draw() -> np.ndarray:  # type: ignore[type-arg]
        return round_to(rng.standard_normal((batch, heads, length, size)), trial.call.dtype)

    return trial.call.but(query=draw(), key=draw(), value=draw(), visible=None, bias=None)


def _no_trace(trial: Trial, call: Call, error: np.ndarray, precision: Precision, sigma: np.ndarray) -> None:  # type: ignore[type-arg]
    if trial.triangle_applies():
        return  # the fits are derived for rows that see every key
    scale = trial.scale(call)
    fits = fit_signatures(call.query, call.key, call.value, trial.exact(call), error, scale, precision, sigma)
    clear = [f for f in fits if abs(f.z) > THRESHOLD]
    trial.evidence.add(len(fits), max((abs(f.z) for f in fits), default=0.0) / THRESHOLD)
    if clear:
        fit = max(clear, key=lambda f: f.removed)
        raise Broken(
            f"the errors are no rounding: they read like {fit.words} ({fit.estimate:.3g} ± {fit.error:.2g}, "
            f"{abs(fit.z):.0f} standard errors)",
            call=call,
        )
