"""Correct kernels lie within the bounds, wrong ones outside, and rounding is exact."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnlaws.judge.backward import backward_worst
from attnlaws.judge.bounds import forward_random, forward_worst, row_sum_slack
from attnlaws.judge.precision import LARGEST, PROFILES, UNIT_ROUNDOFF, Precision, round_to, with_storage_grads

torch.set_num_threads(1)

Array = np.ndarray
Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float, torch.Tensor | None], torch.Tensor]
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
PROFILE = {(dtype, p.name): p for dtype, listed in PROFILES.items() for p in listed}
FAMILIES = [
    "normal",
    "causal",
    "alibi",
    "large8",
    "large60",
    "small",
    "offset_v",
    "offset_k",
    "cancel_v",
    "cancel_qk",
    "uniform",
    "heavy",
    "integers",
    "onehot_v",
    "ties",
]
SHAPES = ((7, 16), (33, 8), (64, 32))


@dataclass(frozen=True)
class Exact:
    """The exact attention in float64 (long double where the kernel under test is float64)."""

    output: Array
    weights: Array
    scores: Array
    scaled: Array
    lse: Array


def exact_of(q: Array, k: Array, v: Array, scale: float, bias: Array | None = None, wide: bool = False) -> Exact:
    """Plain attention; rows without a visible key give zeros."""
    kind = np.longdouble if wide else np.float64
    q, k, v = (np.asarray(x, kind) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scaled = np.einsum("bhld,bhsd->bhls", q, k) * kind(scale) if wide else scale * (q @ k.swapaxes(-1, -2))
    scores = scaled if bias is None else scaled + bias
    peak = scores.max(-1, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, 0)
    grown = np.exp(scores - peak)
    total = grown.sum(-1, keepdims=True)
    weights = grown / np.where(total > 0, total, 1)
    output = np.einsum("bhls,bhsd->bhld", weights, v) if wide else weights @ v
    with np.errstate(divide="ignore"):
        lse = (peak + np.log(total))[..., 0]
    return Exact(*(np.asarray(x, np.float64) for x in (output, weights, scores, scaled, lse)))


def gradients(q: Array, k: Array, v: Array, do: Array, exact: Exact, scale: float) -> tuple[Array, Array, Array]:
    """The exact dq, dk, dv, summed over the heads that share keys."""
    group = q.shape[1] // k.shape[1]
    keys, values = np.repeat(k, group, 1), np.repeat(v, group, 1)
    p = exact.weights
    pull = do @ values.swapaxes(-1, -2)
    ds = scale * p * (pull - (do * exact.output).sum(-1, keepdims=True))
    dk, dv = ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do
    fold = (k.shape[0], k.shape[1], group, k.shape[2], -1)
    return ds @ keys, dk.reshape(fold).sum(2), dv.reshape(fold).sum(2)


def family(name: str, n: int, d: int, rng: np.random.Generator) -> tuple[Array, Array, Array, Array | None]:
    """Inputs (1, 2, n, d) of one family, before rounding to the dtype, and the bias."""
    q, k, v = (rng.standard_normal((1, 2, n, d)) for _ in range(3))
    bias: Array | None = None
    later = np.triu(np.ones((n, n), dtype=bool), 1)
    away = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    if name == "causal":
        bias = np.where(later, -np.inf, 0.0)
    elif name == "alibi":
        bias = np.where(later, -np.inf, -0.0625 * away)
    elif name in ("large8", "large60"):
        q = q * float(name[5:])
    elif name == "small":
        q, k, v = q * 1e-2, k * 1e-2, v * 1e-2
    elif name == "offset_v":
        v = v + 100
    elif name == "offset_k":
        k = k + 8 * rng.standard_normal((1, 2, 1, d))
    elif name == "cancel_v":
        half = n // 2
        big = 1000 * rng.standard_normal((1, 2, half, d))
        v = 0.1 * v
        v[..., 0 : 2 * half : 2, :] += big
        v[..., 1 : 2 * half : 2, :] -= big
        k[..., 1 : 2 * half : 2, :] = k[..., 0 : 2 * half : 2, :]
    elif name == "cancel_qk":
        q[..., d // 2 :] = q[..., : d // 2]
        k[..., d // 2 :] = 0.05 * k[..., d // 2 :] - k[..., : d // 2]
        q, k = 4 * q, 4 * k
    elif name == "uniform":
        k = np.repeat(k[..., :1, :], n, 2)
    elif name == "heavy":
        q, k, v = (np.clip(x / np.abs(rng.standard_normal(x.shape)).clip(0.05), -60, 60) for x in (q, k, v))
        q, k = q / 2, k / 2
    elif name == "integers":
        q, k, v = np.rint(2 * q), np.rint(2 * k), np.rint(3 * v)
    elif name == "onehot_v":
        v = np.zeros_like(v)
        v[..., np.arange(n), np.arange(n) % d] = 1
    elif name == "ties":
        q, k, v = np.sign(q), np.sign(k), np.sign(v)
    return q, k, v, bias


def tensors(dtype: str, *arrays: Array) -> tuple[torch.Tensor, ...]:
    """The arrays in the dtype (they hold values of it)."""
    return tuple(torch.from_numpy(x).to(DTYPES[dtype]) for x in arrays)


def inside(x: torch.Tensor) -> torch.dtype:
    """The dtype in which a fused kernel accumulates."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def sdpa(backend: SDPBackend) -> Kernel:
    def kernel(q, k, v, scale, bias=None):
        with sdpa_kernel(backend):
            mask = None if bias is None else bias.to(q.dtype)
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)

    return kernel


def naive(q, k, v, scale, bias=None):
    s = q @ k.transpose(-1, -2) * scale
    return torch.softmax(s if bias is None else s + bias.to(q.dtype), -1) @ v


def naive_softmax32(q, k, v, scale, bias=None):
    s = q @ k.transpose(-1, -2) * scale
    s = s if bias is None else s + bias.to(q.dtype)
    return torch.softmax(s, -1, dtype=inside(q)).to(q.dtype) @ v


def prescaled(q, k, v, scale, bias=None):
    root = math.sqrt(scale)
    s = (q * root) @ (k * root).transpose(-1, -2)
    return torch.softmax(s if bias is None else s + bias.to(q.dtype), -1) @ v


def in_float32(q, k, v, scale, bias=None):
    return naive(q.float(), k.float(), v.float(), scale, bias).to(q.dtype)


def tf32(q, k, v, scale, bias=None):
    def cut(x):
        return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)

    s = cut(q) @ cut(k).transpose(-1, -2) * scale
    return cut(torch.softmax(s if bias is None else s + bias.float(), -1)) @ cut(v)


def tiles(reverse: bool = False, rescale: bool = True, size: int = 16) -> Kernel:
    """Online softmax over tiles of keys, accumulated in float32, weights cast to storage."""

    def kernel(q, k, v, scale, bias=None):
        acc = inside(q)
        top = torch.full((*q.shape[:-1], 1), -math.inf, dtype=acc)
        total, out = torch.zeros_like(top), torch.zeros((*q.shape[:-1], v.shape[-1]), dtype=acc)
        starts = list(range(0, k.shape[-2], size))
        for at in reversed(starts) if reverse else starts:
            s = q.to(acc) @ k[..., at : at + size, :].to(acc).transpose(-1, -2) * scale
            s = s if bias is None else s + bias[..., at : at + size].to(acc)
            new = torch.maximum(top, s.amax(-1, keepdim=True))
            safe = torch.where(torch.isinf(new), 0.0, new)
            p, shrink = torch.exp(s - safe), torch.exp(top - safe)
            total = total * shrink + p.sum(-1, keepdim=True)
            part = p.to(q.dtype).to(acc) @ v[..., at : at + size, :].to(acc)
            out, top = (out * shrink if rescale else out) + part, new
        return (out / total).to(q.dtype)

    return kernel


def split_keys(q, k, v, scale, bias=None, parts=3):
    """Split the keys, combine with exp(lse_i - lse), which is not divided by its sum."""
    acc, n = inside(q), k.shape[-2]
    outs, logs = [], []
    for i in range(parts):
        at = slice(i * n // parts, (i + 1) * n // parts)
        if at.start == at.stop:
            continue
        s = q.to(acc) @ k[..., at, :].to(acc).transpose(-1, -2) * scale
        s = s if bias is None else s + bias[..., at].to(acc)
        top = s.amax(-1, keepdim=True).clamp(min=-1e30)
        p = torch.exp(s - top)
        total = p.sum(-1, keepdim=True)
        outs.append((p.to(q.dtype).to(acc) @ v[..., at, :].to(acc)) / total.clamp(min=1e-30))
        logs.append(torch.log(total) + top)
    lse = torch.logsumexp(torch.stack(logs), 0)
    return sum(o * torch.exp(x - lse) for o, x in zip(outs, logs, strict=True)).to(q.dtype)


HALF: tuple[tuple[str, Kernel], ...] = (
    ("fused", sdpa(SDPBackend.FLASH_ATTENTION)),
    ("fused", sdpa(SDPBackend.MATH)),
    ("fused", tiles()),
    ("fused", tiles(reverse=True)),
    ("fused", split_keys),
    ("naive", naive),
    ("naive", naive_softmax32),
    ("naive, prescaled", prescaled),
)
KERNELS: dict[str, tuple[tuple[str, Kernel], ...]] = {
    "bfloat16": HALF,
    "float16": HALF,
    "float32": (*(("float32", kernel) for _, kernel in HALF), ("tf32", tf32)),
    "float64": (*(("float64", kernel) for _, kernel in HALF), ("float32 inside", in_float32)),
}


def fits(dtype: str, exact: Exact, q: Array, k: Array, kernel: Kernel) -> bool:
    """Whether the scores a kernel stores stay within the dtype (float16 ends at 65504)."""
    biggest = max(float(np.abs(exact.scaled).max()) * math.sqrt(q.shape[-1]), float(np.abs(exact.output).max()))
    return biggest < LARGEST[dtype] / 2


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", KERNELS)
def test_correct_kernels_lie_within(dtype: str, name: str) -> None:
    rng = np.random.default_rng([FAMILIES.index(name), list(KERNELS).index(dtype)])
    factor = 2.0 if dtype == "float64" else 1.0
    for n, d in SHAPES:
        *raw, bias = family(name, n, d, rng)
        q, k, v = (round_to(x, dtype) for x in raw)
        scale = 1 / math.sqrt(d)
        exact = exact_of(q, k, v, scale, bias, wide=dtype == "float64")
        mask = None if bias is None else torch.from_numpy(bias)
        for profile, kernel in KERNELS[dtype]:
            if not fits(dtype, exact, q, k, kernel):
                continue
            precision = PROFILE[dtype, profile]
            worst = factor * forward_worst(q, k, v, exact, scale, precision)
            random, sigma = forward_random(q, k, v, exact, scale, precision)
            error = np.abs(kernel(*tensors(dtype, q, k, v), scale, mask).double().numpy() - exact.output)
            assert np.isfinite(worst).all()
            assert np.isfinite(random).all()
            assert np.isfinite(sigma).all()
            assert (error <= worst).all(), (profile, kernel, (error / worst).max())
            assert (error <= factor * random).all(), (profile, kernel, (error / random).max())


def grads_of(kernel: Kernel, dtype: str, inputs: tuple[Array, ...], scale: float, bias: Array | None):
    """dq, dk, dv of a kernel by autograd, in float64."""
    q, k, v, do = tensors(dtype, *inputs)
    for x in (q, k, v):
        x.requires_grad_()
    group = q.shape[1] // k.shape[1]
    keys, values = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    kernel(q, keys, values, scale, None if bias is None else torch.from_numpy(bias)).backward(do)
    return tuple(x.grad.double().numpy() for x in (q, k, v))


@pytest.mark.parametrize("heads", [2, 1])
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_gradients_lie_within(dtype: str, name: str, heads: int) -> None:
    rng = np.random.default_rng([FAMILIES.index(name), heads, 7])
    strict = PROFILES[dtype][0]
    loose = PROFILES[dtype][-2 if dtype == "float32" else 1]
    flash = strict if dtype == "float32" else with_storage_grads(strict)
    cases = (
        (sdpa(SDPBackend.FLASH_ATTENTION), flash, None),
        (sdpa(SDPBackend.MATH), strict, None),
        (naive, loose, True),
        (naive_softmax32, loose, True),
        (prescaled, PROFILES[dtype][-1] if dtype != "float32" else strict, True),
    )
    for n, d in SHAPES if heads == 2 else SHAPES[1:]:
        *raw, bias = family(name, n, d, rng)
        q, k, v = (round_to(x, dtype) for x in raw)
        k, v = k[:, :heads], v[:, :heads]
        do = round_to(rng.standard_normal(q.shape), dtype)
        scale = 1 / math.sqrt(d)
        exact = exact_of(q, k, v, scale, bias)
        grads = gradients(q, k, v, do, exact, scale)
        if not fits(dtype, exact, q, k, naive):
            continue
        for kernel, precision, unfused in cases:
            bounds = backward_worst(q, k, v, do, exact, grads, scale, precision, unfused=unfused)
            found = grads_of(kernel, dtype, (q, k, v, do), scale, bias)
            for which, bound, grad, got in zip("qkv", bounds, grads, found, strict=True):
                overflows = np.abs(grad) > LARGEST[dtype] / 2
                error = np.where(overflows, 0.0, np.abs(got - grad))
                assert np.isfinite(bound).all()
                assert (error <= bound).all(), (which, kernel, precision.name, np.nanmax(error / bound))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_soft_cap_lies_within(dtype: str) -> None:
    rng = np.random.default_rng(3)
    for cap, size in ((50.0, 1.0), (20.0, 6.0), (2.0, 3.0)):
        q, k, v, do = (round_to(x * size, dtype) for x in rng.standard_normal((4, 1, 2, 24, 16)))
        plain = exact_of(q, k, v, 0.25)
        bent = np.tanh(plain.scaled / cap)
        exact = replace(exact_of(q, k, v, 0.25, cap * bent - plain.scaled), scaled=plain.scaled)
        slope = 1 - bent**2
        p, pull = exact.weights, do @ v.swapaxes(-1, -2)
        ds = 0.25 * slope * p * (pull - (do * exact.output).sum(-1, keepdims=True))
        grads = (ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do)

        def stored(q, k, v, scale, bias=None, cap=cap):
            return torch.softmax(torch.tanh(q @ k.transpose(-1, -2) * scale / cap) * cap, -1) @ v

        def fused(q, k, v, scale, bias=None, stored=stored):
            return stored(q.float(), k.float(), v.float(), scale).to(q.dtype)

        for kernel, precision in ((fused, PROFILES[dtype][0]), (stored, PROFILES[dtype][-2])):
            if dtype == "float32":
                precision = PROFILES[dtype][0]
            worst = forward_worst(q, k, v, exact, 0.25, precision)
            random, _ = forward_random(q, k, v, exact, 0.25, precision)
            error = np.abs(kernel(*tensors(dtype, q, k, v), 0.25).double().numpy() - exact.output)
            assert (error <= np.minimum(worst, random)).all(), (cap, precision.name, (error / worst).max())
            bounds = backward_worst(q, k, v, do, exact, grads, 0.25, precision, cap_slope=slope)
            for bound, grad, got in zip(bounds, grads, grads_of(kernel, dtype, (q, k, v, do), 0.25, None), strict=True):
                assert (np.abs(got - grad) <= bound).all(), (cap, precision.name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_sinks_and_poison_lie_within(dtype: str) -> None:
    """A sink per row takes its share; NaN behind the mask harms nothing."""
    rng = np.random.default_rng(13)
    for sink in (-3.0, 0.5, 6.0, 40.0):
        q, k, v, do = (round_to(x, dtype) for x in rng.standard_normal((4, 1, 2, 12, 16)))
        bias = np.where(np.arange(12) > 9, -np.inf, 0.0) * np.ones((12, 1))
        plain = exact_of(q, k, v, 0.25, bias)
        lse = np.logaddexp(plain.lse, sink)
        share = np.exp(plain.lse - lse)[..., None]
        exact = replace(plain, lse=lse, weights=plain.weights * share, output=plain.output * share)
        grads = gradients(q, k, v, do, exact, 0.25)

        def stored(q, k, v, scale, bias=None, sink=sink):
            s = q @ k.transpose(-1, -2) * scale + bias.to(q.dtype)
            return torch.softmax(torch.cat((s, torch.full_like(s[..., :1], sink)), -1), -1)[..., :-1] @ v

        def fused(q, k, v, scale, bias=None, stored=stored):
            return stored(q.float(), k.float(), v.float(), scale, bias).to(q.dtype)

        poison = np.where(np.arange(12)[:, None] > 9, np.nan, 0.0)
        for kernel, precision in ((fused, PROFILES[dtype][0]), (stored, PROFILES[dtype][dtype != "float32"])):
            worst = forward_worst(q, k + poison, v + poison, exact, 0.25, precision)
            random, _ = forward_random(q, k + poison, v + poison, exact, 0.25, precision)
            got = kernel(*tensors(dtype, q, k, v), 0.25, torch.from_numpy(bias)).double().numpy()
            assert (np.abs(got - exact.output) <= np.minimum(worst, random)).all(), (sink, precision.name)
            bounds = backward_worst(q, k + poison, v + poison, do, exact, grads, 0.25, precision)
            found = grads_of(kernel, dtype, (q, k, v, do), 0.25, bias)
            for bound, grad, x in zip(bounds, grads, found, strict=True):
                assert (np.abs(x - grad) <= bound).all(), (sink, precision.name)


def test_rows_computed_as_if_unmasked() -> None:
    rng = np.random.default_rng(14)
    q, k, v = (round_to(x, "bfloat16") for x in rng.standard_normal((3, 1, 2, 6, 16)))
    bias = np.zeros((6, 6))
    bias[4] = -np.inf
    free, masked = exact_of(q, k, v, 0.25), exact_of(q, k, v, 0.25, bias)
    row = np.arange(6)[:, None] == 4
    mixed = replace(
        masked,
        output=np.where(row, free.output, masked.output),
        weights=np.where(row, free.weights, masked.weights),
    )
    for precision in PROFILES["bfloat16"]:
        wanted = forward_worst(q, k, v, free, 0.25, precision)
        got = forward_worst(q, k, v, mixed, 0.25, precision)
        assert (got[:, :, 4] >= 0.3 * wanted[:, :, 4]).all()
        assert (got[:, :, 4] <= 3 * wanted[:, :, 4]).all()


def planted(score=None, weigh=None, scale_by=1.0, swap=False) -> Kernel:
    """A correct kernel with float32 inside, except for one fault."""

    def kernel(q, k, v, scale, bias=None):
        acc = torch.float32
        k = torch.cat((k[..., 1:2, :], k[..., :1, :], k[..., 2:, :]), -2) if swap else k
        s = q.to(acc) @ k.to(acc).transpose(-1, -2) * (scale * scale_by)
        s = score(s) if score else s
        e = torch.exp(s - s.amax(-1, keepdim=True))
        total = e.sum(-1, keepdim=True)
        e, total = weigh(e, total) if weigh else (e, total)
        return (e.to(q.dtype).to(acc) @ v.to(acc) / total).to(q.dtype)

    return kernel


def drop(count: int):
    def weigh(e, total):
        e = torch.cat((e[..., :-count], torch.zeros_like(e[..., -count:])), -1)
        return e, e.sum(-1, keepdim=True)

    return weigh


def stored_accumulator(q, k, v, scale, bias=None):
    p = torch.softmax(q.float() @ k.float().transpose(-1, -2) * scale, -1)
    out = torch.zeros(q.shape, dtype=q.dtype)
    for at in range(0, k.shape[-2], 8):
        part = p[..., at : at + 8].to(q.dtype).float() @ v[..., at : at + 8, :].float()
        out = (out.float() + part).to(q.dtype)
    return out


FAULTS: dict[str, Kernel] = {
    "scale 1/sqrt(d + 1)": planted(scale_by=math.sqrt(64 / 65)),
    "no scale": planted(scale_by=8.0),
    "scale 1/d": planted(scale_by=0.125),
    "denominator +1%": planted(weigh=lambda e, total: (e, 1.01 * total)),
    "last key dropped": planted(weigh=drop(1)),
    "last 16 keys dropped": planted(weigh=drop(16)),
    "two keys swapped": planted(swap=True),
    "wrong axis": planted(weigh=lambda e, total: (e / e.sum(-2, keepdim=True), torch.ones_like(total))),
    "slope 0.01": planted(score=lambda s: s + 0.01 * torch.arange(s.shape[-1])),
    "diagonal 0.5": planted(score=lambda s: s + 0.5 * torch.eye(s.shape[-1])),
    "no rescale": tiles(rescale=False),
    "stored accumulator": stored_accumulator,
}
FINE_FAULTS: dict[str, Kernel] = {
    "scale * 1.001": planted(scale_by=1.001),
    "denominator +0.1%": planted(weigh=lambda e, total: (e, 1.001 * total)),
}


@pytest.mark.parametrize("fault", [*FAULTS, *FINE_FAULTS])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_wrong_kernels_lie_outside(dtype: str, fault: str) -> None:
    if dtype == "bfloat16" and fault in FINE_FAULTS:
        pytest.skip("below the resolution of bfloat16")
    if dtype == "float32" and fault == "stored accumulator":
        pytest.skip("float32 is the accumulator")
    rng = np.random.default_rng(11)
    precision = PROFILES[dtype][0]
    for _ in range(3):
        q, k, v = (round_to(x, dtype) for x in rng.standard_normal((3, 1, 4, 128, 64)))
        exact = exact_of(q, k, v, 0.125)
        worst = forward_worst(q, k, v, exact, 0.125, precision)
        inputs = tensors(dtype, q, k, v)
        assert (np.abs(planted()(*inputs, 0.125).double().numpy() - exact.output) <= worst).all()
        got = {**FAULTS, **FINE_FAULTS}[fault](*inputs, 0.125).double().numpy()
        assert (np.abs(got - exact.output) > worst).any()


def test_many_keys_use_products_and_stay_near() -> None:
    rng = np.random.default_rng(2)
    q, k, v = (round_to(x, "bfloat16") for x in rng.standard_normal((3, 1, 1, 300, 64)))
    v = round_to(v + 3, "bfloat16")
    exact, precision = exact_of(q, k, v, 0.125), PROFILES["bfloat16"][0]
    large = forward_worst(q, k, v, exact, 0.125, precision)
    rows = [
        forward_worst(
            q[:, :, at : at + 20],
            k,
            v,
            Exact(*(getattr(exact, f)[:, :, at : at + 20] for f in Exact.__dataclass_fields__)),
            0.125,
            precision,
        )
        for at in range(0, 300, 20)
    ]
    small = np.concatenate(rows, 2)
    assert (small <= large * (1 + 1e-9)).all()
    assert (large <= 1.05 * small + 1e-6).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_without_a_key(dtype: str) -> None:
    rng = np.random.default_rng(4)
    q, k, v, do = (round_to(x, dtype) for x in rng.standard_normal((4, 1, 2, 5, 8)))
    bias = np.zeros((5, 5))
    bias[2] = -np.inf
    bias[3, 1] = -np.inf
    zero = exact_of(q, k, v, 0.3, bias)
    output, weights = zero.output.copy(), zero.weights.copy()
    output[:, :, 2], weights[:, :, 2] = v.mean(-2), 0.2
    uniform = replace(zero, output=output, weights=weights)
    third = np.arange(5)[:, None] == 2
    nan = replace(zero, output=np.where(third, np.nan, output), weights=np.where(third, np.nan, weights))
    precision = PROFILES[dtype][0]
    worst = forward_worst(q, k, v, zero, 0.3, precision)
    assert (worst[:, :, 2] == 0).all()
    assert (worst[:, :, [0, 1, 3, 4]] > 0).all()
    mean = forward_worst(q, k, v, uniform, 0.3, precision)
    assert (mean[:, :, 2] > 0).all()
    assert (mean[:, :, 2] <= 200 * precision.u_out).all()
    assert np.isfinite(forward_worst(q, k, v, nan, 0.3, precision)).all()
    for exact in (zero, uniform, nan):
        bound, sigma = forward_random(q, k, v, exact, 0.3, precision)
        assert np.isfinite(bound).all()
        assert np.isfinite(sigma).all()
        grads = gradients(q, k, v, do, zero, 0.3)
        for bound in backward_worst(q, k, v, do, exact, grads, 0.3, precision):
            assert np.isfinite(bound).all()


@pytest.mark.parametrize("precision", PROFILE.values(), ids=lambda p: p.name)
def test_bounds_stay_finite_and_within_reach(precision: Precision) -> None:
    rng = np.random.default_rng(5)
    for size in (1e-30, 1.0, 100.0, 1e4):
        q, k, v, do = rng.standard_normal((4, 1, 2, 9, 8))
        q = q * size
        for bias in (None, np.where(np.eye(9) > 0, -1e9, 0.0), np.full((9, 9), np.finfo(np.float32).min)):
            exact = exact_of(q, k, v, 1.0, bias)
            worst = forward_worst(q, k, v, exact, 1.0, precision)
            bound, _ = forward_random(q, k, v, exact, 1.0, precision)
            assert (worst <= 1.2 * (np.ptp(v, axis=-2, keepdims=True) + np.abs(v).max())).all() or size == 1e4
            assert np.isfinite(worst).all()
            assert np.isfinite(bound).all()
            for grad in backward_worst(q, k, v, do, exact, gradients(q, k, v, do, exact, 1.0), 1.0, precision):
                assert np.isfinite(grad).all()


def test_no_keys_and_no_queries() -> None:
    q, k = np.ones((1, 2, 3, 4)), np.ones((1, 2, 0, 4))
    flat = np.zeros((1, 2, 3, 0))
    exact = Exact(np.zeros((1, 2, 3, 4)), flat, flat, flat, np.full((1, 2, 3), -np.inf))
    precision = PROFILES["float32"][0]
    assert (forward_worst(q, k, k, exact, 1.0, precision) == 0).all()
    assert (forward_random(q, k, k, exact, 1.0, precision)[0] == 0).all()
    assert backward_worst(q, k, k, q, exact, (q, k, k), 1.0, precision)[0].shape == q.shape


def test_float16_masks_at_the_edge_are_seen() -> None:
    """A finite bias of -1e4 or finfo.min leaves the other weights as accurate as before."""
    rng = np.random.default_rng(6)
    q, k, v = rng.standard_normal((3, 1, 1, 8, 8))
    plain = exact_of(q, k[..., :6, :], v[..., :6, :], 0.35)
    low = np.where(np.arange(8) > 5, float(np.finfo(np.float32).min), 0.0) * np.ones((8, 1))
    exact = exact_of(q, k, v, 0.35, low)
    precision = PROFILES["float32"][0]
    less = forward_worst(q, k[..., :6, :], v[..., :6, :], plain, 0.35, precision)
    assert (forward_worst(q, k, v, exact, 0.35, precision) <= 2 * less).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_recovered_rows_sum_to_one(dtype: str) -> None:
    rng = np.random.default_rng(8)
    factor = 2.0 if dtype == "float64" else 1.0
    for n in (1, 5, 16, 64):
        for size in (0.1, 1.0, 8.0):
            q, k = (round_to(size * x, dtype) for x in rng.standard_normal((2, 1, 2, n, n)))
            for profile, kernel in KERNELS[dtype]:
                got = kernel(*tensors(dtype, q, k, np.tile(np.eye(n), (1, 2, 1, 1))), 0.2, None).double().numpy()
                slack = row_sum_slack(n, PROFILE[dtype, profile], lse=0.2 * n * 70)
                assert (np.abs(got.sum(-1) - 1) <= factor * slack).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_round_to_agrees_with_torch(dtype: str) -> None:
    rng = np.random.default_rng(9)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = values[~np.isnan(values)]
    values = np.concatenate((values, rng.standard_normal(50_000).astype(np.float32), np.float32(1e-7) * values))
    edges = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        65504,
        65519.9,
        65520,
        2.0**-24,
        2.0**-25,
        3 * 2.0**-25,
        3.4e38,
    ]
    values = np.concatenate((values, np.array(edges, np.float32)))
    with np.errstate(all="ignore"):
        wanted = torch.from_numpy(values).to(DTYPES[dtype]).double().numpy()
        got = round_to(values.astype(np.float64), dtype)
    assert np.array_equal(got, wanted, equal_nan=True)
    number = ~np.isnan(got)
    assert np.array_equal(np.signbit(got[number]), np.signbit(wanted[number]))


def test_round_to_rounds_once() -> None:
    """Halfway between two bfloat16 numbers plus a little: float32 in between would round to even."""
    above = 1 + 2.0**-8 + 2.0**-40
    assert round_to(np.array([above]), "bfloat16")[0] == 1 + 2.0**-7
    assert round_to(np.array([2.0**-134 * (1 + 2.0**-40)]), "bfloat16")[0] == 2.0**-133
    assert round_to(np.array([2.0**-134]), "bfloat16")[0] == 0
    top = LARGEST["bfloat16"]
    beyond = top + 2.0**119
    assert round_to(np.array([top, beyond, np.nextafter(beyond, 0)]), "bfloat16").tolist() == [
        top,
        np.inf,
        top,
    ]


def test_tables() -> None:
    for dtype, kind in DTYPES.items():
        info = torch.finfo(kind)
        assert UNIT_ROUNDOFF[dtype] == info.eps / 2
        assert LARGEST[dtype] == info.max
    assert [p.name for p in PROFILES["bfloat16"]] == ["fused", "naive", "naive, prescaled", "naive, softmax in steps"]
    assert [p.device for p in PROFILES["float32"]] == ["any", "cuda"]
    assert with_storage_grads(PROFILES["float16"][0]).grad_tile == 32
