"""Benchmarks: verdicts on made-up times, what is kept and read again, and the command on small cases."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from attnlaws import api, cli
from attnlaws.bench import roof
from attnlaws.bench.cases import CASES, Case, UnknownCase, case_of, not_taken, select
from attnlaws.bench.contest import settle
from attnlaws.bench.cost import memory_growth, time_growth
from attnlaws.bench.history import BadBaseline, Kept, change_point, past, read, this_machine
from attnlaws.bench.model import ModelWork
from attnlaws.bench.run import Bench, Row, against_stored, run_bench
from attnlaws.bench.timing import PROCESS, THREAD, WALL, CpuClock, Race, Run, Side
from attnlaws.bench.verdict import FASTER, INCONCLUSIVE, LOOKS, SAME, SLOWER, compare, compare_apart, holm, judge
from attnlaws.bench.work import FunctionWork
from attnlaws.laws.trial import Broken
from attnlaws.report.bench import fail_if, render

SMALL = Case("small", "forward", 1, 2, 2, 16, 16, 8)
STEP = Case("step", "gpt-step", 1, 2, 2, 6, 6, 4, causal=True)
WRITE = Case("write", "generation", 1, 2, 2, 3, 6, 4, causal=True)


def ratios(level: float, *, blocks: int = 72, noise: float = 0.08, seed: int = 0) -> NDArray[np.float64]:
    """Log ratios as a busy machine gives them: heavy tails, blocks that differ."""
    rng = np.random.default_rng(seed)
    own = noise * rng.standard_t(3, (blocks, 5)) / 2
    return np.asarray(math.log(level) + own + noise / 4 * rng.standard_normal((blocks, 1)))


# -- verdicts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "wanted"),
    [(1.0, SAME), (1.01, SAME), (1.1, SLOWER), (1 / 1.1, FASTER), (1.05, INCONCLUSIVE), (3.0, SLOWER)],
)
def test_a_verdict_is_on_the_ratio_and_its_threshold(level: float, wanted: str) -> None:
    for seed in range(8):
        assert judge([compare(ratios(level, seed=seed))], [0.05]) == [wanted]


def test_noise_makes_a_comparison_inconclusive_and_is_told() -> None:
    noisy = compare(ratios(1.1, blocks=14, noise=0.5))
    assert judge([noisy], [0.05]) == [INCONCLUSIVE]
    assert noisy.low < 1.05 < noisy.high
    assert noisy.noise > 0.05


def test_a_larger_threshold_makes_a_difference_no_matter() -> None:
    seen = compare(ratios(1.1), 0.2)
    assert judge([seen], [0.2]) == [SAME]


def test_a_few_blocks_have_no_interval_and_no_verdict() -> None:
    few = compare(ratios(2.0, blocks=3))
    assert judge([few], [0.05]) == [INCONCLUSIVE]
    assert few.noise == math.inf


def test_equal_code_is_seldom_told_apart_in_whole_comparisons() -> None:
    """60 comparisons of 8 cases at each look: at most 1 in 100 may differ; the margin of the threshold makes it far less."""
    alarms = 0
    for n in range(60):
        for blocks in LOOKS[:2]:
            found = [compare(ratios(1.0, blocks=blocks, seed=100 * n + k)) for k in range(8)]
            alarms += bool({SLOWER, FASTER} & set(judge(found, [0.05] * 8)))
    assert alarms == 0


def test_holm_rejects_step_by_step() -> None:
    assert holm([0.001, 0.04, 0.02], 0.05) == [True, True, True]
    assert holm([0.02, 0.03, 0.04], 0.05) == [False, False, False]
    assert holm([0.04, 0.01, 0.03], 0.05) == [False, True, False]
    assert holm([], 0.05) == []


def test_runs_apart_differ_by_more_than_one_run_shows() -> None:
    now, then = ratios(1.08, noise=0.01), ratios(1.0, noise=0.01, seed=1)
    assert judge([compare(now - 0.0)], [0.05]) == [SLOWER]
    once = compare_apart(now, [then])
    assert judge([once], [0.05], looks=1) == [INCONCLUSIVE]
    often = compare_apart(now, [ratios(1.0, noise=0.01, seed=k) for k in range(30)])
    assert often.noise < once.noise
    assert judge([compare_apart(ratios(1.4), [then])], [0.05], looks=1) == [SLOWER]


# -- timing ------------------------------------------------------------------------------------------------------


def working(amount: int) -> Callable[[int], Run]:
    """A side that computes so much."""
    x = torch.randn(amount, 64)
    return lambda block: lambda: x @ x.T


def test_a_race_of_equal_sides_is_even_and_of_unlike_sides_is_not() -> None:
    equal = Race([Side("a", working(96)), Side("b", working(96))])
    equal.run(24)
    assert equal.judged == THREAD
    assert abs(np.median(equal.log_ratios(0, 1))) < 0.1
    unlike = Race([Side("a", working(288)), Side("b", working(96))])
    ((comparison, verdict),) = settle([unlike], [0.05])
    assert verdict == SLOWER
    assert comparison.ratio > 2


def test_a_side_that_waits_is_timed_by_the_wall() -> None:
    def sleeping(block: int) -> Run:
        return lambda: time.sleep(2e-4)

    race = Race([Side("sleeps", sleeping), Side("works", working(96))])
    race.run(8)
    assert race.judged == WALL
    assert np.median(race.seconds(0)) > 2e-4


def test_work_on_other_threads_is_seen() -> None:
    class Elsewhere(CpuClock):
        def elsewhere(self, run: Run, times: int) -> tuple[float, float]:
            return (2.0 if run is first else 1.0), 0.0

    first = working(96)(0)
    race = Race([Side("threads", lambda block: first), Side("alone", working(96))], Elsewhere())
    race.run(8)
    assert race.judged == PROCESS
    assert np.median(race.log_ratios(0, 1)) == pytest.approx(math.log(2), abs=0.3)


def test_the_sides_take_turns_and_go_first_equally_often() -> None:
    order: list[str] = []

    class Noting(CpuClock):
        def take(self, run: Run, times: int) -> tuple[float, float, Any]:
            order.append(run())
            return 1e-3, 1e-3, None

    race = Race([Side(name, lambda block, name=name: lambda: name) for name in "ab"], Noting())  # type: ignore[misc]
    race.run(8)
    timed = order[-8 * 2 * race.rounds :]
    firsts = timed[::2]
    assert all({first, second} == {"a", "b"} for first, second in zip(firsts, timed[1::2], strict=True))
    assert firsts.count("a") == firsts.count("b")


def test_a_deadline_ends_a_race_and_what_was_timed_is_kept() -> None:
    race = Race([Side("a", working(96)), Side("b", working(96))])
    assert not race.run(10**6, time.monotonic() + 0.05)
    assert race.taken
    ((_, verdict),) = settle([race], [0.05], deadline=0.0)
    assert verdict == INCONCLUSIVE


# -- cases and the limit -----------------------------------------------------------------------------------------


def test_a_case_is_read_as_it_is_written() -> None:
    for case in CASES:
        assert case_of(case.sizes) == case
        assert case_of(case.name) == case
    own = case_of("backward B2 H4 Hkv2 L8 S16 D32 bfloat16 causal")
    assert own == case_of(own.sizes)
    assert select(["decode, tiny", "tiny"]) == (case_of("decode"), case_of("tiny"))


@pytest.mark.parametrize(
    "text", ["decod", "forwards", "forward B0", "forward H3 Hkv2", "generation L8 S8", "forward B1 X2"]
)
def test_a_case_that_makes_no_sense_is_told(text: str) -> None:
    with pytest.raises(UnknownCase):
        case_of(text)


def test_a_case_that_a_target_does_not_take_is_not_changed_into_one() -> None:
    def square(query, key, value):  # type: ignore[no-untyped-def]
        assert query.shape == key.shape
        return torch.softmax(query @ key.mT / query.shape[-1] ** 0.5, -1) @ value

    target = api.function_of(square)
    assert not_taken(case_of("decode"), target) == "takes equal lengths only"
    assert not_taken(case_of("prefill"), target) == "offers no causality"
    assert not_taken(case_of("forward"), target) is None


def test_the_least_work_by_hand() -> None:
    case = Case("", "forward", 2, 4, 2, 3, 5, 8)
    assert roof.flops(case) == 2 * 2 * 4 * 15 * (8 + 8)
    assert roof.traffic(case) == 4 * 2 * 8 * (4 * 3 * 2 + 2 * 5 * 2)
    assert roof.visible_pairs(3, 5, True) == 1 + 2 + 3
    assert roof.visible_pairs(5, 3, True) == 1 + 2 + 3 + 3 + 3
    assert roof.flops(replace(case, kind="backward")) == 3 * roof.flops(case)
    rates = roof.Rates(gemm=1e9, copy=1e9, launch=1e-6)
    assert roof.roof_of(case, rates).limit == "compute"
    assert roof.roof_of(case, roof.Rates(1e15, 1e15, 1e-3)) == roof.Roof(1e-3, "launch")


def test_parameters_of_the_timed_gpt_are_counted() -> None:
    work = ModelWork(api.function_of("torch.sdpa"), STEP)
    named = dict(work.model.named_parameters())
    matrices = sum(p.numel() for name, p in named.items() if p.ndim == 2 and "wpe" not in name)
    assert roof.parameters(STEP) == matrices


# -- right before it is timed, and while ---------------------------------------------------------------------------


class Cheat:
    """Right when it is asked a few times, then the first answer again and again."""

    def __init__(self, honest: int) -> None:
        self.calls, self.honest, self.kept = 0, honest, None

    def __call__(self, query, key, value):  # type: ignore[no-untyped-def]
        self.calls += 1
        if self.calls <= self.honest or self.kept is None or self.kept.shape != query.shape:
            self.kept = torch.softmax(query @ key.mT / query.shape[-1] ** 0.5, -1) @ value
        return self.kept.clone()


def test_what_is_wrong_while_it_is_timed_has_no_time() -> None:
    target = api.function_of(Cheat(honest=10**9))
    cheat = Cheat(honest=2)
    found = run_bench(target.but(function=cheat), cases=[SMALL])
    assert not found.timed
    assert "was wrong while timed" in found.rows[0].wrong
    assert "wrong while timed" in render(found)


def test_what_is_wrong_is_not_timed() -> None:
    def unscaled(query, key, value):  # type: ignore[no-untyped-def]
        return torch.softmax(query @ key.mT, -1) @ value

    found = run_bench(api.function_of(unscaled), cases=[SMALL, replace(SMALL, name="again")])
    assert len(found.wrong) == 2
    assert not found.timed
    _, machine, blank, *lines, blank_too, last = render(found).splitlines()
    assert machine.endswith("one thread")
    assert blank == blank_too == ""
    (line,) = lines
    assert line.startswith("  ✗ all cases: ")
    assert "is wrong, so it is not timed: " in line
    assert last.startswith("no case timed, 2 wrong; ")


def test_an_input_changed_in_place_is_found_after_timing() -> None:
    def spoiling(query, key, value, **options):  # type: ignore[no-untyped-def]
        out = torch.softmax(query @ key.mT / query.shape[-1] ** 0.5, -1) @ value
        query += 1
        return out

    work = FunctionWork(api.function_of("torch.sdpa").but(function=spoiling), SMALL)
    run = work.prepare(0)
    with pytest.raises(Broken, match="changes query in place"):
        work.judge_timed(0, run())


@pytest.mark.parametrize("case", [STEP, WRITE], ids=lambda case: case.kind)
@pytest.mark.parametrize("name", ["torch.sdpa", "attnlaws.reference.attention:chunked_attention"])
def test_a_gpt_with_the_target_inside_is_judged_call_by_call(name: str, case: Case) -> None:
    work = ModelWork(api.function_of(name), case)
    assert 0 < work.judge() <= 1
    assert work.judge_timed(3, work.prepare(3)()) <= 1
    wrong = work.target.but(function=lambda *given, **named: work.target.function(*given, **named) * 1.01)
    with pytest.raises(Broken, match="inside the GPT"):
        ModelWork(wrong, case).judge()


def test_a_target_with_its_own_axes_works_inside_a_gpt() -> None:
    def exchanged(q, k, v, causal=False):  # type: ignore[no-untyped-def]
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)

    target = api.function_of(exchanged)
    assert target.conventions.layout == "BSHD"
    assert ModelWork(target, WRITE).judge() <= 1


# -- what is kept --------------------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of one small case, kept by the command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    case = SMALL.sizes
    assert cli.main(["bench", "torch.sdpa", "--save", "--cases", case, "--budget", "20"]) == 0
    (path,) = tmp_path.glob(".benchmarks/*/0001_torch.sdpa.json")
    return path


def test_a_kept_run_is_read_again_and_is_pytest_benchmarks(stored: Path) -> None:
    (kept,) = read(stored)
    assert kept.target == "torch.sdpa"
    assert kept.case == SMALL.sizes
    assert kept.machine == this_machine()
    assert len(kept.ratios) >= LOOKS[0]
    storage = pytest.importorskip("pytest_benchmark.storage.file")
    folder = stored.parents[1]
    (loaded,) = storage.FileStorage(str(folder), None).load()
    (entry,) = loaded[1]["benchmarks"]
    assert {"min", "max", "mean", "stddev", "median", "iqr", "outliers", "rounds", "ops"} <= set(entry["stats"])
    assert entry["stats"]["min"] <= entry["stats"]["median"] <= entry["stats"]["max"]


def test_a_run_is_compared_with_a_kept_one(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "torch.sdpa", "--cases", f"{SMALL.sizes},tiny", "--budget", "20", "--fail-if", "median>50%"]
    assert cli.main([*command, "--against", str(stored)]) == 0
    printed = capsys.readouterr().out
    assert "new: not in the baseline" in printed
    assert stored.name in printed
    assert cli.main([*command[:-2], "--against", str(stored.parents[1])]) == 0


def test_another_machine_or_calibration_gives_no_verdict(stored: Path) -> None:
    (kept,) = read(stored)
    row = Row(SMALL, seconds=np.ones((14, 5)), calibrated=ratios(2.0, blocks=14), clock=kept.clock)
    ((same,), _) = against_stored([row], [kept], kept.machine)
    assert same.verdict in (SLOWER, FASTER, SAME, INCONCLUSIVE)
    other = replace(kept, machine=replace(kept.machine, cpu="another"))
    ((there,), notes) = against_stored([row], [other], kept.machine)
    assert there.verdict == "not comparable"
    assert "another machine" in notes[0]
    ((old,), _) = against_stored([row], [replace(kept, calibration=0)], kept.machine)
    assert old.verdict == "not comparable"


def test_a_case_that_is_missing_is_told(stored: Path) -> None:
    (kept,) = read(stored)
    gone = replace(kept, case="forward B9 H9 L9 S9 D9 float32")
    row = Row(SMALL, seconds=np.ones((14, 5)), calibrated=ratios(1.0, blocks=14), clock=kept.clock)
    _, notes = against_stored([row], [kept, gone], kept.machine)
    assert notes == (f"missing: the baseline has {gone.case}, and this run has not",)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        '{"benchmarks": [], "datetime": ""}',
        '{"benchmarks": [{"extra_info": {"attnlaws": {"format": 1}}}], "datetime": ""}',
    ],
)
def test_a_file_that_is_no_kept_run_is_told(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(BadBaseline, match=r"x\.json"):
        read(path)
    assert past("torch.sdpa", this_machine(), tmp_path) == {}


def test_a_change_of_level_is_found_where_it_is() -> None:
    rng = np.random.default_rng(3)
    for at, level in ((5, 0.3), (9, -0.3), (12, 0.15)):
        series = 0.02 * rng.standard_normal(16)
        series[at:] += level
        found = change_point(list(series))
        assert found is not None
        assert found.at == at
        assert found.ratio == pytest.approx(math.exp(level), rel=0.05)
    quiet = [change_point(list(0.03 * rng.standard_normal(12))) for _ in range(40)]
    assert sum(found is not None for found in quiet) <= 2
    assert change_point([0.0, 0.0, 1.0, 1.0]) is None


# -- the report ------------------------------------------------------------------------------------------------------


def made(level: float, **more: Any) -> Bench:
    """A run with one row of that ratio."""
    comparison = compare(ratios(level))
    (verdict,) = judge([comparison], [0.05])
    row = Row(SMALL, error=0.01, seconds=np.full((72, 5), 1e-3), comparison=comparison, verdict=verdict, **more)
    row = replace(row, roof=roof.Roof(5e-4, "compute"), clock="CPU time of one thread", other=np.full((72, 5), 1e-3))
    return Bench("mine", "theirs", (row,), this_machine(), 1.0)


def test_the_table_has_times_verdict_limit_and_match() -> None:
    printed = render(made(1.2))
    assert "small" in printed
    assert "1 ms" in printed
    assert "50% compute" in printed
    assert "slower by 2" in printed
    assert "✓ 0.01" in printed
    assert "same within 5%" in render(made(1.0))


def test_fail_if_is_a_rule_on_verdict_and_median() -> None:
    rule = fail_if("median > 10%")
    assert rule.failing(made(1.2))
    assert not rule.failing(made(1.08))
    assert not rule.failing(made(1.0))
    assert not rule.failing(made(0.5))
    for text in ("mean>5%", "median>5", "median<5%", ""):
        with pytest.raises(ValueError, match="is no rule"):
            fail_if(text)


def test_a_change_in_the_history_is_told_with_the_run_it_began_in() -> None:
    machine = this_machine()
    levels = [0.0, 0.01, -0.01, 0.0, 0.01, 0.4, 0.41, 0.4, 0.39]
    runs = [
        Kept("mine", SMALL.sizes, np.array([[level]]), 1e-3, "", machine, 1, f"{n:04d}_mine.json", str(n))
        for n, level in enumerate(levels)
    ]
    assert "slower by 4" in render(made(1.0), {SMALL.sizes: runs})
    assert "since 0005_mine.json" in render(made(1.0), {SMALL.sizes: runs})
    assert "since" not in render(made(1.0), {SMALL.sizes: runs[:5]})


def test_the_command_fails_a_slow_side_and_passes_the_quick_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    case, reference = SMALL.sizes, "attnlaws.reference.attention:attention"
    command = ["bench", "--cases", case, "--budget", "30", "--fail-if", "median>10%"]
    assert cli.main([*command, reference, "--against", "torch.sdpa"]) == 1
    assert "fails: " in capsys.readouterr().out
    assert cli.main([*command, "torch.sdpa", "--against", reference]) == 0
    printed = capsys.readouterr().out
    assert "faster" in printed
    pytest.importorskip("matplotlib")
    assert (tmp_path / ".attnlaws" / "bench.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "words",
    [
        ["torch.sdpa", "--cases", "nothing"],
        ["torch.sdpa", "--fail-if", "median>5%"],
        ["torch.sdpa", "--fail-if", "often", "--against", "torch.flex"],
        ["torch.sdpa", "--against", "nowhere.json"],
        ["torch.sdpa", "--threshold", "nothing=5%"],
        ["torch.sdpa", "--threshold", "wide"],
    ],
)
def test_wrong_usage_is_told(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *words]) == 2
    assert capsys.readouterr().err


# -- cost ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "low", "high"), [("attention", 1.8, 2.1), ("chunked_attention", 0.7, 1.2)])
def test_peak_memory_grows_as_it_should(name: str, low: float, high: float) -> None:
    target = api.function_of(f"attnlaws.reference.attention:{name}")

    def at(n: int) -> Run:
        x = torch.randn(1, 1, n, 64)
        return lambda: target.function(x, x, x)

    growth = memory_growth(target.framework.peak_memory, at, (512, 1024, 2048, 4096))
    assert growth is not None
    assert low < growth.exponent < high


def test_peak_memory_is_to_the_byte() -> None:
    framework = api.function_of("torch.sdpa").framework
    x = torch.zeros(1000)

    def two() -> Any:
        y = x + x
        return y + y

    assert framework.peak_memory(two) == 2 * 4000 + framework.peak_memory(lambda: None)
    from attnlaws.targets.numpy_arrays import NumpyFramework

    one = NumpyFramework().peak_memory(lambda: np.zeros(100_000))
    assert 800_000 <= one < 801_000


def test_exponents_of_time_are_seen() -> None:
    def at(n: int) -> Run:
        x, y = torch.randn(n, 64), torch.randn(64, n)
        return lambda: x @ y

    growth = time_growth(at, lambda n: Case("", "forward", 1, 1, 1, n, n, 64), (256, 512, 1024))
    assert growth is not None
    assert growth.low > 1.2
    assert growth.high < 2.9
    with pytest.raises(ValueError, match="double"):
        time_growth(at, lambda n: SMALL, (256, 500))


def test_a_declared_cost_that_does_not_hold_is_broken_and_no_other_is() -> None:
    naive = api.function_of("attnlaws.reference.attention:attention")
    assert api.check_one(naive, "cost.memory").exit_code == 0
    report = api.check_one(naive.but(cost={"memory": 1.0}), "cost.memory")
    assert report.exit_code == 1
    assert "S^1 at most" in report.verdicts[0].reason


def test_a_mask_of_all_pairs_for_one_query_is_seen() -> None:
    def wasteful(query, key, value):  # type: ignore[no-untyped-def]
        length = key.shape[2]
        seen = torch.ones(length, length, dtype=torch.bool)[-query.shape[2] :]
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)

    report = api.check_one(api.function_of(wasteful), "cost.decode")
    assert report.exit_code == 1
    assert "the memory of a step of decoding grows as S^2" in report.verdicts[0].reason


def test_costs_are_declared_in_pyproject(tmp_path: Path) -> None:
    from attnlaws.targets.address import BadConfiguration, load_target

    text = '[tool.attnlaws.targets.mine]\ntarget = "torch.sdpa"\ncost = {{ {} }}\n'
    (tmp_path / "pyproject.toml").write_text(text.format("memory = 1, decode = 1"))
    target = load_target("mine", root=tmp_path)
    assert dict(target.cost) == {"memory": 1, "decode": 1}  # type: ignore[union-attr]
    for wrong in ("speed = 1", 'memory = "linear"', "memory = -1"):
        (tmp_path / "pyproject.toml").write_text(text.format(wrong))
        with pytest.raises(BadConfiguration, match="cost"):
            load_target("mine", root=tmp_path)


def test_the_kept_file_names_no_seconds_that_are_not_there(stored: Path) -> None:
    content = json.loads(stored.read_text())
    text = json.dumps(content)
    assert "NaN" not in text
    assert "Infinity" not in text
