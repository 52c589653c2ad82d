"""Laws of cost: how time and memory of a call grow with the length, whatever the machine.

A correct function may be slow; what is refused here is growth that attention doesn't have, or that was declared not to be
there: [tool.attnlaws.targets.NAME] cost = { memory = 1, decode = 1, window = 1, time = 2 }, exponents of the length.
"""

from __future__ import annotations

from collections.abc import Callable

from attnlaws.bench.cases import Case
from attnlaws.bench.cost import MARGIN, Growth, memory_growth, time_growth
from attnlaws.bench.timing import Run
from attnlaws.laws.law import law
from attnlaws.laws.trial import Broken, Refused, Trial
from attnlaws.problems.values import call_of
from attnlaws.problems.wants import Wants
from attnlaws.targets.target import Target

PLAIN = Wants(masks=("none",), bias=False, scale=False, regimes=("normal",), causal=False, dtypes=("float32",))
#: a target that is always causal has costs as well
ANY = Wants(masks=("none",), bias=False, scale=False, regimes=("normal",), dtypes=("float32",))
SQUARE = (256, 512, 1024)
CACHE = (4096, 8192, 16384)
WINDOW = 64


def _one_query(target: Target) -> str | None:
    able = target.abilities
    return None if able.single_query and able.rectangular else "takes no single query"


def _declared_window(target: Target) -> str | None:
    if not target.abilities.window:
        return "takes no window"
    return None if "window" in target.cost else "its cost with a window is not declared"


def _at(trial: Trial, queries: Callable[[int], int], window: bool = False) -> Callable[[int], Run | None]:
    """The call at each length n: B = H = 1, D = 64, n keys; None where the target doesn't take it."""
    size = (trial.abilities.head_dims or (64,))[0]
    flag = trial.conventions.causal == "flag" and trial.problem.causal
    taken: dict[int, bool] = {}

    def at(n: int) -> Run | None:
        sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "queries": queries(n), "keys": n, "head_dim": size}
        ends = {"left": WINDOW, "right": WINDOW if trial.abilities.window_right else -1} if window else {}
        problem = trial.problem.but(**sizes, **ends, value_dim=size, causal=flag)
        run, _ = trial.target.ready(call_of(problem, trial.conventions))
        trial.evidence.calls += 1
        if n not in taken:
            taken[n] = _runs(run)
        return run if taken[n] else None

    return at


def _runs(run: Run) -> bool:
    """Whether a call is taken at all; whether a length may be refused is for layout.sizes."""
    try:
        run()
    except Exception:
        return False
    return True


def _case(trial: Trial, queries: Callable[[int], int]) -> Callable[[int], Case]:
    return lambda n: Case("", "forward", 1, 1, 1, queries(n), n, 64)


def _told(trial: Trial, growth: Growth, what: str, size: str) -> None:
    trial.evidence.add(len(growth.lengths), 0.0)
    first, last = growth.lengths[0], growth.lengths[-1]
    trial.evidence.note = f"{what} grows as S^{growth.exponent:.2f} from S = {first} to {last}, {size} there"


def _memory(trial: Trial, queries: Callable[[int], int], lengths: tuple[int, ...], limit: float, what: str) -> None:
    try:
        growth = memory_growth(trial.target.framework.peak_memory, _at(trial, queries), (*lengths, 2 * lengths[-1]))
    except NotImplementedError as refusal:
        raise Refused(str(refusal)) from refusal
    trial.suitable(growth is not None)
    assert growth is not None
    _told(trial, growth, what, f"{growth.last / 1e6:.3g} MB")
    if growth.exponent > limit + MARGIN:
        raise Broken(f"{trial.evidence.note}: S^{limit:g} at most")


@law(
    "cost.memory",
    "the memory of a call grows with the square of the length at most, or as declared",
    wants=ANY,
    share=0.3,
    slow=True,
    chance=True,
)
def test_memory(trial: Trial) -> None:
    """The peak of what a call with L = S = n holds is c n^p: p = 2 where the (L, S) scores are stored, p = 1 for an online softmax
    (arXiv:2112.05682). p is the slope of log(bytes) over log(n), n = 256 .. 2048. More than 2, or than declared, is refused.
    """
    _memory(trial, lambda n: n, SQUARE, trial.target.cost.get("memory", 2.0), "the memory of a call")


@law(
    "cost.time",
    "the time of a call grows no faster than that of softmax(q k^T) v, or as declared",
    wants=ANY,
    share=0.5,
    slow=True,
    chance=True,
    basis=("cost.memory",),
)
def test_time(trial: Trial) -> None:
    """t(2n) / t(n) = 2^p with L = S = n. A plain kernel of two products and a softmax, timed in turn, has its own 2^p0, p0 = 2 and what
    caches add. p - p0 > 1/2 beyond doubt is refused, half-way to a cube; so is p above what is declared.
    """
    growth = time_growth(_at(trial, lambda n: n), _case(trial, lambda n: n), SQUARE, _device(trial))
    trial.suitable(growth is not None)
    assert growth is not None
    _told(trial, growth, "the time of a call", f"{1e3 * growth.last:.3g} ms")
    _refuse(trial, growth, trial.target.cost.get("time"))


@law(
    "cost.decode",
    "a step of decoding costs time and memory linear in the length of the cache",
    wants=PLAIN,
    applies=_one_query,
    share=0.5,
    slow=True,
    chance=True,
)
def test_decode(trial: Trial) -> None:
    """One query over n keys reads each key and value once: time and memory c n^p, p = 1. Refused: memory with p > 1.2 (an (S, S) mask for one
    row has 2), and time that grows faster than the plain kernel's by n^(1/2) beyond doubt, or than declared.
    """
    one: Callable[[int], int] = lambda n: 1  # noqa: E731
    _memory(trial, one, CACHE, 1.0, "the memory of a step of decoding")
    memory = trial.evidence.note
    growth = time_growth(_at(trial, one), _case(trial, one), CACHE, _device(trial))
    trial.suitable(growth is not None)
    assert growth is not None
    _told(trial, growth, "time", f"{1e3 * growth.last:.3g} ms")
    trial.evidence.note = f"{memory}; {trial.evidence.note}"
    _refuse(trial, growth, trial.target.cost.get("decode"))


@law(
    "cost.window",
    "with a window the time of a call grows as declared",
    wants=ANY,
    applies=_declared_window,
    share=0.5,
    slow=True,
    chance=True,
)
def test_window(trial: Trial) -> None:
    """With a window of w keys a query costs O(w), whatever the length: time c n^1 for L = S = n. Tried where that is declared, since a mask
    on all n^2 scores is right as well.
    """
    growth = time_growth(_at(trial, lambda n: n, window=True), _case(trial, lambda n: n), SQUARE, _device(trial))
    trial.suitable(growth is not None)
    assert growth is not None
    _told(trial, growth, "the time with a window", f"{1e3 * growth.last:.3g} ms")
    _refuse(trial, growth, trial.target.cost["window"])


def _refuse(trial: Trial, growth: Growth, declared: float | None) -> None:
    """Raise Broken where time grows faster than is declared, or far faster than the plain kernel's."""
    if declared is not None and growth.low > declared + MARGIN:
        raise Broken(f"{trial.evidence.note}; declared was S^{declared:g}")
    if growth.beyond_low > 0.5:
        raise Broken(
            f"{trial.evidence.note}, faster than two products and a softmax by S^{growth.beyond_low:.2f} or more"
        )


def _device(trial: Trial) -> str:
    return str(getattr(trial.target.framework, "device", "cpu"))
