"""What a model takes beside its tokens, found by trying: padding masks, position ids, segments, labels; tied weights."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .call import Array, TargetRaised, WrongResult
from .model import PAD_KINDS, PAD_SHAPES, LossWay, ModelTarget, PadWay
from .model_inputs import Inputs, IntArray
from .model_instance import ModelInstance
from .trying_model import changed, moves, plain_inputs, probing, sees_others

FAILS = (TargetRaised, WrongResult)
#: attributes that say that weights are tied
_TIED = ("tie_word_embeddings", "tie_weights", "tied", "weight_tying", "tie_embeddings", "tie_embedding", "tied_embeddings",
         "share_embeddings", "tie_word_embedding")  # fmt: skip
#: names of parts of a model that know where a token is
_POSITIONS = re.compile(
    r"(?<![a-z])w?pos(?:ition|_|\b|e|itional)|wpe|rope(?![a-z])|rotary|alibi|sinusoid|relative_|inv_freq", re.IGNORECASE
)
#: names that say that a mask is about padding: where it is taken and hides nothing, that is wrong
_PADDING = ("attention_mask", "padding_mask", "pad_mask", "key_padding_mask", "src_key_padding_mask", "input_mask",
            "decoder_attention_mask", "tgt_key_padding_mask", "decoder_padding_mask", "tgt_padding_mask")  # fmt: skip
#: words of losses that are more than a cross-entropy
_MORE = re.compile(r"label_smoothing|aux|z_loss|router|focal|kl_div|class_weight|weight=|lambda|penalty", re.IGNORECASE)


def find_masks(target: ModelTarget, roles: Mapping[str, str], instance: ModelInstance) -> ModelTarget:
    """The target with its ways to hide padding, of its own tokens and of the source, and what was not understood."""
    ignored: list[str] = []
    unclear: list[str] = []
    found: dict[str, PadWay | None] = {}
    for field, role in (("pad", "decoder_mask" if target.source else "mask"), ("source_pad", "mask")):
        if field == "source_pad" and not target.source:
            continue
        name = roles.get(role)
        if name is None or target.fixed.get(name) is not None:
            found[field] = _by_id(target, instance, field)
            continue
        answers = [(tried_pad(target, instance, way, field), way) for way in _ways(name)]
        best = next((a for a in ("hides", "nearly") if any(answer == a for answer, _ in answers)), None)
        found[field] = next((way for answer, way in answers if answer == best), None) if best else None
        if best is None:
            said = {answer for answer, _ in answers} - {"refused"}
            useless = said == {"nothing"} or (bool(said) and name.lower() in _PADDING)
            blind = bool(said & {"more", "unseen"}) or (field == "pad" and not sees_others(instance))
            (ignored if useless and not blind else unclear).append(name)
    return target.but(
        pad=found["pad"], source_pad=found.get("source_pad"), ignored=tuple(ignored), unclear=tuple(unclear)
    )


def _ways(name: str) -> Iterator[PadWay]:
    for shape in PAD_SHAPES:
        for kind in PAD_KINDS:
            yield PadWay(name, kind, shape)


def tried_pad(target: ModelTarget, instance: ModelInstance, way: PadWay, field: str) -> str:
    """What hiding the second of four tokens of a first sample does: "hides" it, "nearly", "nothing", "refused", "other".

    In a window of two nobody sees a token past a hidden one: there the first is hidden instead, and where that tells no more,
    it is "unseen". A 4-D mask is "more" where it shows what isn't seen without one: it is the whole mask then, as
    transformers takes it.
    """
    asking = ModelInstance(target.but(**{field: way}), instance.module, instance.dtype)
    found = _hidden(target, instance, asking, field, 1)
    if found == "unseen":
        windowed = field == "pad" and target.dependence.left is not None
        again = _hidden(target, instance, asking, field, 0) if windowed else ""
        found = again if again in ("hides", "nearly") else "unseen" if windowed else "other"
    if found in ("hides", "nearly") and field == "pad" and way.shape == "B11L":
        inputs = plain_inputs(target, 2, 4, seed=4)
        shown = moves(asking, inputs.but(real=np.ones((2, 4), dtype=bool)))
        return "more" if (shown & ~moves(instance, inputs)).any() else found
    return found


def _hidden(target: ModelTarget, instance: ModelInstance, asking: ModelInstance, field: str, at: int) -> str:
    """The same for the token `at`, 0 or 1; "unseen" where neither of the two moves what comes after."""
    inputs = plain_inputs(target, 2, 4, seed=4)
    real = np.ones((2, 4), dtype=bool)
    real[0, at] = False
    shown = {"real": real} if field == "pad" else {"source_real": real}
    name = "ids" if field == "pad" else "source"
    after = [max(at, j) + 1 if field == "pad" else 0 for j in (at, 1 - at)]
    tokens = getattr(inputs, name)
    own = target if field == "pad" else target.but(vocabulary=target.source_vocabulary)
    try:
        hidden = inputs.but(**shown)
        base, free = asking.run(hidden), instance.run(inputs)
        moved = [
            asking.run(hidden.but(**{name: changed(tokens, own, (slice(None), slice(j, j + 1)))})) for j in (at, 1 - at)
        ]
    except FAILS:
        return "refused"
    if np.array_equal(base, free):
        return "nothing"
    if not np.isfinite(base[0, after[0] :]).all():
        return "other"
    size = float(np.abs(base[0, after[0] :]).max())
    of_hidden, of_other = (
        [float(np.abs(m[b, n:] - base[b, n:]).max()) / size for b in range(2)]
        for m, n in zip(moved, after, strict=True)
    )
    least = 1e-10 if instance.dtype == "float64" else 1e-5
    if of_hidden[0] <= least:
        return "unseen" if of_other[0] <= least else "hides" if of_hidden[1] > least else "nearly"
    return "nearly" if of_hidden[0] < 0.1 * of_other[0] else "other"


def _by_id(target: ModelTarget, instance: ModelInstance, field: str) -> PadWay | None:
    """A mask that the model makes of the pad id: an encoder's tokens before it give what they give alone."""
    if target.pad_id is None or (field == "pad" and target.kind != "encoder"):
        return None
    name = "ids" if field == "pad" else "source"
    inputs = plain_inputs(target, 1, 4, seed=4)
    tokens = getattr(inputs, name)
    padded = tokens.copy()
    padded[:, 2:] = target.pad_id
    try:
        long, short = instance.run(inputs.but(**{name: padded})), instance.run(inputs.but(**{name: tokens[:, :2]}))
    except FAILS:
        return None
    rows = slice(0, 2) if field == "pad" else slice(None)
    least = 1e-9 if instance.dtype == "float64" else 1e-4
    near = np.abs(long[:, rows] - short[:, rows]).max() <= least * np.abs(short).max()
    return PadWay("", "by id") if near else None


def find_places(
    target: ModelTarget, roles: Mapping[str, str], instance: ModelInstance, told: Mapping[str, Any]
) -> ModelTarget:
    """The target with its position ids, and what is known of where tokens stand."""
    name = roles.get("positions")
    if name is not None and name not in target.fixed:
        target = _position_ids(target, name, instance)
    asking = ModelInstance(target, instance.module, instance.dtype)
    if word := _speaks_of_positions(target.module):
        target = target.but(known={**target.known, "positions": word})
    target = target.but(placed=_placed(target, asking))
    return target.but(left_padding=told.get("left_padding") or _left_padding(target))


def _position_ids(target: ModelTarget, name: str, instance: ModelInstance) -> ModelTarget:
    """The target with the shape of its position ids, and the one of the first token: 0, or the one after the pad id, as in
    RoBERTa. Where distances are biases (ALiBi), ids that change nothing are no positions.
    """
    inputs = plain_inputs(target, 2, 3)
    base = instance.run(inputs)
    way: tuple[str, int] | None = None
    for first in (0, *(() if target.pad_id is None else (target.pad_id + 1,))):
        for shape in ("BL", "1L", "L"):
            asking = ModelInstance(target.but(positions=name, positions_shape=shape), instance.module, instance.dtype)
            try:
                got, gaps = (
                    asking.run(inputs.but(places=np.array(2 * [[first, first + n, first + 2 * n]]))) for n in (1, 2)
                )
            except FAILS:
                continue
            if np.array_equal(got, gaps) and _biased_by_distance(target.module):
                return target.but(known={**target.known, name: "changes nothing: distances are biases"})
            if np.array_equal(got, gaps) and not sees_others(instance):  # no distance to tell
                return target.but(unclear=(*target.unclear, name))
            if _near(got, base, instance):
                return target.but(positions=name, positions_shape=shape, first_place=first)
            way = way or (shape, first)
    if way is None:
        return target.but(unclear=(*target.unclear, name))
    return target.but(positions=name, positions_shape=way[0], first_place=way[1])


def _biased_by_distance(module: Any) -> bool:
    """Whether a model says that it has ALiBi or biases of relative positions."""
    config = getattr(module, "config", None)
    names = [n for n, _ in module.named_modules()] + [n for n, _ in module.named_buffers()]
    return getattr(config, "alibi", None) is True or any(re.search("alibi|relative", n, re.IGNORECASE) for n in names)


def _speaks_of_positions(module: Any) -> str:
    """The first part, parameter or buffer whose name speaks of positions, or ""."""
    names = [n for n, _ in module.named_modules()] + [type(part).__name__ for part in module.modules()]
    names += [n for n, _ in module.named_parameters()] + [n for n, _ in module.named_buffers()]
    return next((n.rpartition(".")[2] for n in names if _POSITIONS.search(n.rpartition(".")[2])), "")


def _placed(target: ModelTarget, instance: ModelInstance) -> str:
    """Whether a token alone gives the same wherever it is said to stand: "relative" then, else "absolute"."""
    if not target.positions or target.longest < 4:
        return "unknown"
    one = plain_inputs(target, 1, 1)
    try:
        here, there = (instance.run(one.but(places=np.array([[target.first_place + n]]))) for n in (0, 3))
    except FAILS:
        return "unknown"
    return "relative" if _near(here, there, instance) else "absolute"


def _left_padding(target: ModelTarget) -> str:
    """What a token alone gives behind two padded ones: as if they were not there, or as at its place in the row."""
    if target.pad is None or target.pad.kind == "by id" or target.longest < 3:
        return "unknown"
    instance = probing(target, target.dtypes[0])
    inputs = plain_inputs(target, 1, 3)
    real = np.array([[False, False, True]])
    places = np.full((1, 3), target.first_place) if target.positions else None
    try:
        alone = instance.run(inputs.cut(slice(2, 3)))
        behind = instance.run(inputs.but(real=real, places=places))[:, 2:]
    except FAILS:
        return "unknown"
    if not np.isfinite(behind).all():
        return "not taken"
    return "absent" if target.positions or _near(behind, alone, instance) else "counts"


def _near(got: Array, want: Array, instance: ModelInstance) -> bool:
    least = 1e-6 if instance.dtype == "float64" else 1e-4
    return bool(np.abs(got - want).max() <= least * np.abs(want).max())


def find_segments(target: ModelTarget, roles: Mapping[str, str], instance: ModelInstance) -> ModelTarget:
    """The target with the parameter of its segment ids, and how many segments there are."""
    name = roles.get("segments")
    if name is None or name in target.fixed:
        return target
    asking = ModelInstance(target.but(segments=name), instance.module, instance.dtype)
    inputs = plain_inputs(target, 1, 3)
    count = 0
    if getattr(getattr(target.module, "config", None), "type_vocab_size", 2) < 2:
        return target
    for n in range(4):
        try:
            asking.run(inputs.but(segments=np.full((1, 3), n)))
        except FAILS:
            break
        count = n + 1
    return target.but(segments=name, segment_count=count) if count > 1 else target


# -- the loss ------------------------------------------------------------------------------------------------------------


def find_loss(
    target: ModelTarget, roles: Mapping[str, str], instance: ModelInstance, told: Mapping[str, Any]
) -> ModelTarget:
    """The target with what its loss is: how labels stand to positions, mean or sum, which labels are ignored."""
    if not target.labels or told.get("loss") == "other":
        return target if not target.labels else target.but(known={**target.known, "loss": "declared another"})
    inputs = plain_inputs(target, 2, min(target.longest, 5), seed=6)
    rng = np.random.Generator(np.random.Philox(key=[7, 13]))
    labels = np.array(rng.permutation(inputs.ids.size).reshape(inputs.ids.shape) % max(target.vocabulary - 1, 1) + 1)
    if target.pad_id in labels:
        labels[labels == target.pad_id] = target.real_ids[-1]
    try:
        loss, logits = instance.loss(inputs.but(labels=labels))
    except FAILS:
        return target.but(known={**target.known, "loss": "none"})
    shifts = ("inside", "none") if target.kind == "decoder" else ("none",)
    ways = [LossWay(shift, (), reduction) for shift in shifts for reduction in ("mean", "sum")]
    ways = [way for way in ways if told.get("loss") in (None, way.shift)]
    errors = [abs(cross_entropy(logits, labels, way) - loss) for way in ways]
    best = int(np.argmin(errors))
    if not errors[best] <= 1e-4 * max(abs(loss), 1.0):
        word = _more(target.module)
        return target.but(known={**target.known, "loss": f"more than a cross-entropy ({word})" if word else "unclear"})
    way = ways[best]
    candidates = dict.fromkeys(n for n in (-100, -1, target.pad_id) if n is not None)
    return target.but(
        loss=LossWay(
            way.shift, tuple(n for n in candidates if _ignores(instance, inputs, labels, way, n)), way.reduction
        )
    )


def _ignores(instance: ModelInstance, inputs: Inputs, labels: IntArray, way: LossWay, mark: int) -> bool:
    """Whether a label of this value is left out. A negative one that is taken is, unless it counts from the end."""
    marked = labels.copy()
    marked[0, -2:] = mark
    try:
        loss, logits = instance.loss(inputs.but(labels=marked))
    except FAILS:
        return False
    if not np.isfinite(loss):
        return False
    if mark < 0:
        last = logits.shape[-1] + mark
        counted = np.where(marked == mark, last, marked)
        return last < 0 or abs(cross_entropy(logits, counted, way) - loss) > 1e-4 * max(abs(loss), 1.0)
    without = LossWay(way.shift, (mark,), way.reduction)
    return abs(cross_entropy(logits, marked, without) - loss) <= 1e-4 * max(abs(loss), 1.0)


def cross_entropy(logits: Array, labels: Any, way: LossWay) -> float:
    """The loss by the book: -log softmax(logits_i)[label], over the labels that are not ignored; 0/0 where all are."""
    if way.shift == "inside":
        logits, labels = logits[:, :-1], labels[:, 1:]
    kept = ~np.isin(labels, way.ignore)
    chosen, wanted = logits[kept], np.asarray(labels)[kept]
    top = chosen.max(-1, keepdims=True) if chosen.size else np.zeros((0, 1))
    log_sum = top[:, 0] + np.log(np.exp(chosen - top).sum(-1))
    losses = log_sum - chosen[np.arange(len(wanted)), wanted]
    if way.reduction == "sum":
        return float(losses.sum())
    return float(losses.mean()) if len(losses) else float("nan")


def _more(module: Any) -> str:
    """A word in forward that speaks of a loss that is more than a cross-entropy, or ""."""
    try:
        found = _MORE.search(inspect.getsource(type(module).forward))
    except (OSError, TypeError):
        return ""
    return found[0] if found else ""


# -- tied weights ----------------------------------------------------------------------------------------------------------


def find_tied(target: ModelTarget, told: Mapping[str, Any]) -> ModelTarget:
    """The target with the groups of parameters that are one, and the attribute that says that they should be."""
    groups = tuple(target.itself().shared())
    holders = (("", target.module), ("config.", getattr(target.module, "config", None)))
    said = [where + name for where, holder in holders for name in _TIED if getattr(holder, name, None) is True]
    tables = [v.shape for v in target.itself().parameters().values() if v.ndim == 2 and target.vocabulary in v.shape]
    if not groups and len(tables) < 2:  # a model without a head, such as GPT2Model
        said = []
    if told.get("tied") == "yes":
        said = ["declared"]
    if told.get("tied") == "no":
        said = []
    return target.but(tied=groups, says_tied=said[0] if said else "")
