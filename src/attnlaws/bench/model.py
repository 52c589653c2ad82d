"""A whole GPT with the target as its attention: a step of training, or generation with a cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..laws.trial import Broken, Crashed, Evidence, Session, Trial
from ..problems.problem import Problem
from ..targets.call import Array, Call, TargetRaised
from ..targets.target import Target
from .cases import Case
from .roof import LAYERS, VOCABULARY
from .timing import Run
from .work import Judged

#: where the axes B, H, L, D stand in a layout
AXES = {"BHSD": (0, 1, 2, 3), "BSHD": (0, 2, 1, 3), "SBHD": (2, 0, 1, 3)}


class ModelWork:
    """A GPT of `LAYERS` layers whose heads are the target's. Every call of the target inside it is judged by the oracle."""

    def __init__(self, target: Target, case: Case, session: Session | None = None) -> None:
        from ..reference.gpt import GPT, GPTConfig

        self.target, self.case, self.name = target, case, target.name
        self.session = Session() if session is None else session
        self.torch = target.framework.torch  # type: ignore[attr-defined]
        config = GPTConfig(
            vocab_size=VOCABULARY,
            context_length=max(case.keys, case.queries),
            d_model=case.heads * case.head_dim,
            num_layers=LAYERS,
            num_heads=case.heads,
            embedding_dropout=0.0,
            attention_dropout=0.0,
            residual_dropout=0.0,
        )
        model: Any = GPT(config, self.torch.Generator().manual_seed(0))
        self.model = model.to(device=target.framework.device, dtype=getattr(self.torch, case.dtype))  # type: ignore[attr-defined]
        #: the calls of the target, where they are recorded
        self.seen: list[tuple[Any, ...]] | None = None
        for block in self.model.h:
            block.attn.attend = self._attend
        self._templates: dict[tuple[int, ...], tuple[list[Any], dict[str, Any]]] = {}
        self._axes = AXES[target.conventions.layout]
        self._back = tuple(int(n) for n in np.argsort(AXES[target.output_axes]))

    def prepare(self, block: int) -> Run:
        """A step, or a generation, on the tokens of this block."""
        generator = self.torch.Generator().manual_seed(block)
        device = self.model.wte.weight.device
        tokens = self.torch.randint(VOCABULARY, (self.case.batch, self.case.queries + 1), generator=generator).to(
            device
        )
        if self.case.kind == "generation":
            new = self.case.keys - self.case.queries
            return lambda: self.model.eval().generate(tokens[:, :-1], new, temperature=0.0)
        return lambda: self._step(tokens)

    def _step(self, tokens: Any) -> Any:
        """The gradients of the loss by all parameters."""
        logits = self.model.train()(tokens[:, :-1])
        loss = self.torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        return self.torch.autograd.grad(loss, list(self.model.parameters()))

    def _attend(self, query: Any, key: Any, value: Any, *, attn_mask: Any, dropout_p: float) -> Any:
        """The target in the place of the GPT's attention, (B, H, L, D) in its axes: the causal triangle, or one query."""
        operands = (x.permute(self._axes) for x in (query, key, value))
        given = dict(zip(("query", "key", "value"), operands, strict=True))
        positional, keywords = self.target.replaced(*self._template(query.shape[2], key.shape[2]), given)
        result = self.target.function(*positional, **keywords)
        output = (result[0] if isinstance(result, tuple | list) else result).permute(self._back)
        if self.seen is not None:
            self.seen.append((query, key, value, output))
        return output

    def _template(self, queries: int, keys: int) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call of these lengths beside query, key and value, made once."""
        if (queries, keys) not in self._templates:
            zeros = np.zeros((self.case.batch, self.case.heads, keys, self.case.head_dim))
            call = self._call(zeros[:, :, :queries], zeros, zeros)
            self._templates[queries, keys] = self.target.arguments(call, (), False)[0]
        return self._templates[queries, keys]

    def _call(self, query: Array, key: Array, value: Array) -> Call:
        """The call that a GPT makes of its attention."""
        target, (queries, keys) = self.target, (query.shape[2], key.shape[2])
        scale = query.shape[3] ** -0.5 if target.conventions.default_scale == "1" else None
        call = Call(query, key, value, self.case.dtype, scale=scale)
        if queries == 1 or target.conventions.causal == "always":
            return call
        if target.conventions.causal == "flag":
            return call.but(causal=True)
        route = "bool" if "bool" in target.abilities.routes else "additive"
        return call.but(visible=np.tri(queries, keys, dtype=bool), route=route)

    def judge(self) -> float:
        """Every call of the target in one run against the oracle: the largest error / bound. Raises Broken or Crashed."""
        self.seen = []
        try:
            self.prepare(0)()
        except Exception as error:
            raise Crashed(TargetRaised(error).cause_line, None) from error
        finally:
            seen, self.seen = self.seen, None
        if not seen:
            raise Broken("the model never called its attention")
        return max(self._judge_call(*call) for call in seen)

    def _judge_call(self, query: Any, key: Any, value: Any, output: Any) -> float:
        """One recorded call; where it is trained, its gradients too."""
        numpy = self.target.framework.to_numpy
        call = self._call(numpy(query), numpy(key), numpy(value))
        batch, heads, _, queries, keys, size, _ = call.sizes
        problem = Problem(batch, heads, heads, queries, keys, size, size, self.case.dtype, causal=call.causal)
        trial = Trial(self.target, problem, self.session, Evidence())
        trial.call = call
        what = "the attention inside the GPT is not softmax(scale q k^T + mask) v"
        trial.agrees_with_oracle(numpy(output), call, what)
        if self.case.kind == "generation":
            return trial.evidence.worst
        judged = Judged(trial, gradients=True)
        return max(trial.evidence.worst, judged.judge(judged.called(), None))

    def judge_timed(self, block: int, result: Any) -> float:
        """What was timed is what the model gives when it is asked again, bit for bit, or as far off as two more askings are."""
        worst = self.judge()
        first, second, third = (_flat(r) for r in (result, self.prepare(block)(), self.prepare(block)()))
        for a, b, c in zip(first, second, third, strict=True):
            if (a - b).abs().max() > 16 * (b - c).abs().max():
                raise Broken("the model gave another result while it was timed")
        return worst


def _flat(result: Any) -> list[Any]:
    """The tokens, or the gradients."""
    return [x.detach().double() for x in (result if isinstance(result, tuple | list) else [result])]
