"""Laws of the options: windows, ALiBi slopes, sinks, soft caps, packed sequences."""

from __future__ import annotations

import numpy as np

from attnlaws.laws.law import law
from attnlaws.laws.trial import Trial
from attnlaws.problems.wants import Wants
from attnlaws.targets.call import Call, TargetRaised, WrongResult
from attnlaws.targets.options import alibi_bias, structure

MILD = ("normal", "flat", "integer", "tied")
BASIS = ("weights.row-stochastic", "scores.default-scale", "causality.future-keys", "masks.sensitivity")


@law(
    "masks.window",
    "a window shows the keys that it says, and no other",
    wants=Wants(option="window", bias=False, regimes=MILD),
    share=1.5,
    basis=BASIS,
)
def test_window(trial: Trial) -> None:
    """w_ij > 0 exactly where i - l <= j <= i + r (and where the causal flag and the mask allow it); o as the oracle's.

    l and r as the card says: a number may count the query's own key or not, -1 or None has no end.
    """
    call = trial.call
    trial.suitable(call.window is not None)
    trial.agrees_with_oracle(trial.run().output, call, "the output is not that of the keys in the window")
    flat = call.but(query=np.zeros_like(call.query), slopes=None)
    weights, shown = trial.weights(flat), trial.allowed_pairs(flat)
    one_hot = trial.one_hot(flat)
    trial.equal(
        np.where(shown, 0.0, weights), np.zeros_like(weights), "a key outside of the window has weight", call=one_hot
    )
    least = 0.1 / (trial.problem.keys + np.exp(2.0))  # a sink takes e^2 at most
    trial.require(bool((weights[shown] > least).all()), "a key inside of the window has no weight", one_hot)


@law(
    "masks.window-is-mask",
    "a window equals the explicit mask of the same keys",
    wants=Wants(option="window", options=("softcap", "alibi", "sinks"), masks=("none",), bias=False, regimes=MILD),
    applies=lambda t: None if set(t.abilities.routes) - {"padding"} else "takes no mask of queries and keys",
    basis=("masks.window", "masks.sensitivity"),
)
def test_window_is_mask(trial: Trial) -> None:
    """o(window) = o(mask = [i - l <= j <= i + r]), with the causal flag or without."""
    call = trial.call
    trial.suitable(call.window is not None)
    trial.suitable(not call.causal or trial.conventions.mask_and_causal == "intersection")
    shown = structure(call, trial.conventions)
    assert shown is not None
    shown = trial.in_shape(shown)
    route = next(r for r in trial.abilities.routes if r != "padding")
    masked = call.but(window=None, visible=shown, route=route)
    trial.agree(
        trial.run().output, call, trial.run(masked).output, masked, "a window differs from the mask of the same keys"
    )


@law(
    "masks.alibi",
    "ALiBi slopes add slope * distance to the scores of their head",
    wants=Wants(option="alibi", regimes=MILD),
    basis=BASIS,
)
def test_alibi(trial: Trial) -> None:
    """w_ij ~ exp(s_ij + m_h (j - i)), m_h the slope of head h: 3, 5, 6, 12 heads too. Press et al. 2022, section 3."""
    call = trial.call
    trial.suitable(call.slopes is not None)
    quiet = call.but(query=np.zeros_like(call.query))
    trial.agrees_with_oracle(
        trial.run(quiet).output, quiet, "with q = 0 the weights are not softmax(slope * distance) by head"
    )
    if trial.abilities.rectangular and not trial.triangle_applies() and call.visible is None and call.bias is None:
        at = np.arange(300) % trial.problem.keys  # past 256 keys positions are not exact in bfloat16
        long = call.but(key=call.key[:, :, at], value=call.value[:, :, at])
        trial.agrees_with_oracle(trial.run(long).output, long, "past 256 keys the slopes don't multiply the distance")
    trial.agrees_with_oracle(trial.run().output, call, "the slopes don't add slope * distance to the scores")


@law(
    "masks.alibi-is-bias",
    "ALiBi slopes equal the additive mask slope * distance",
    wants=Wants(option="alibi", options=("softcap", "sinks"), masks=("none",), bias=False, regimes=MILD),
    applies=lambda t: (
        None if t.abilities.bias and "BHLS" in t.abilities.mask_shapes else "takes no additive mask (B, H, L, S)"
    ),
    basis=("masks.alibi", "masks.additive-values"),
)
def test_alibi_is_bias(trial: Trial) -> None:
    """o(slopes m) = o(bias m_h * distance_ij), the distance as the card says: j - i or -|i - j|."""
    call = trial.call
    bias = alibi_bias(call, trial.conventions)
    trial.suitable(bias is not None and call.dtype in ("float32", "float64"))
    trial.suitable(not call.causal or trial.conventions.mask_and_causal == "intersection")
    assert bias is not None
    plain = call.but(slopes=None, bias=np.array(call.full(bias)), route="additive")
    trial.agree(
        trial.run().output, call, trial.run(plain).output, plain, "slopes differ from the bias slope * distance"
    )


@law(
    "masks.sinks",
    "a sink joins the denominator of its head, and nothing else",
    wants=Wants(option="sinks", regimes=MILD),
    basis=BASIS,
)
def test_sinks(trial: Trial) -> None:
    """w_ij = exp(s_ij) / (exp(sink_h) + sum_k exp(s_ik)); a sink of -60 is none. gpt-oss; Xiao et al. 2024."""
    call = trial.call
    trial.suitable(call.sinks is not None)
    trial.agrees_with_oracle(trial.run().output, call, "the sink doesn't join the denominator alone")
    low = call.but(sinks=np.full_like(np.asarray(call.sinks), -60.0))
    trial.agrees_with_oracle(trial.run(low).output, low, "a sink of -60 changes the output")


@law(
    "scores.softcap",
    "the scaled scores are capped by cap tanh(s / cap), before any mask",
    wants=Wants(option="softcap", regimes=("normal", "peaked", "integer", "tied")),
    basis=BASIS,
)
def test_softcap(trial: Trial) -> None:
    """o = softmax(cap tanh(s / cap) + m) v: a masked key keeps weight 0.

    Source: Gemma 2, arXiv:2408.00118; before the mask: ONNX Attention since its correction onnx/onnx#7867.
    """
    call = trial.call
    trial.suitable(call.softcap is not None)
    trial.agrees_with_oracle(trial.run().output, call, "the scores are not capped by cap tanh(s / cap)")
    shown = trial.allowed_pairs()
    if not shown.all() and trial.problem.keys <= 17:
        weights = trial.weights()
        trial.equal(
            np.where(shown, 0.0, weights),
            np.zeros_like(weights),
            "with a soft cap a masked key has weight",
            call=trial.one_hot(call),
        )


def _is_packed(target: object) -> str | None:
    layout = getattr(getattr(target, "conventions", None), "layout", "")
    return None if layout == "packed" else "takes no packed sequences"


@law(
    "masks.varlen",
    "packed sequences are each that sequence alone",
    wants=Wants(options=("window", "softcap", "alibi", "sinks"), masks=("none",), bias=False, regimes=MILD),
    applies=_is_packed,
    basis=("weights.oracle",),
    share=1.5,
)
def test_varlen(trial: Trial) -> None:
    """o(pack(x_1, ..., x_n))[n] = o(x_n): lengths 0, 1 and above a tile among them; rows past the last offset hold NaN,
    and are never read.
    """
    whole = trial.call
    queries, keys = whole.query.shape[2], whole.key.shape[2]
    together = whole.causal or whole.window is not None or not trial.abilities.rectangular
    square = together or bool(trial.rng.integers(0, 2))
    lengths = trial.rng.integers(0, min(queries, keys) + 1, int(trial.rng.integers(2, 5))).tolist()
    lengths[-1] = 0 if trial.rng.random() < 0.3 else lengths[-1]
    pairs = [(n, n if square else int(trial.rng.integers(1, keys + 1))) for n in lengths]
    pieces = [_piece(whole, i, n, m) for i, (n, m) in enumerate(pairs)]
    tail = int(trial.rng.integers(0, 3))
    try:
        outputs = trial.target.packed(pieces, tail)
    except TargetRaised as failure:
        trial.require(False, f"sequences of {pairs} queries and keys raise {failure.cause_line}", whole)
        return
    except WrongResult as failure:
        trial.require(False, str(failure), whole)
        return
    for n, (piece, output) in enumerate(zip(pieces, outputs, strict=True)):
        if piece.query.shape[2]:
            trial.agrees_with_oracle(output, piece, f"sequence {n} of {pairs} differs from itself alone")


def _piece(whole: Call, index: int, queries: int, keys: int) -> Call:
    """One sequence: the first queries and keys of a sample, turned by its number so that no two are alike."""
    sample = index % whole.query.shape[0]
    turned = (np.roll(x[sample : sample + 1], index, axis=2) for x in (whole.query, whole.key, whole.value))
    query, key, value = turned
    return whole.but(query=query[:, :, :queries], key=key[:, :, :keys], value=value[:, :, :keys])
