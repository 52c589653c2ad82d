"""Shards that are together the whole, found cases that every machine tries first, a soak, and pytest-xdist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis.database import InMemoryExampleDatabase

from attnlaws import api
from attnlaws.cli import main
from attnlaws.laws.load import load_laws
from attnlaws.run.check import run_checks
from attnlaws.run.found import Found, NoDatabase, database_of
from attnlaws.run.ledger import Report
from attnlaws.run.shards import part_of
from attnlaws.run.soak import Round, soak

pytest_plugins = ["pytester"]

LEAKS = """
import torch

def leaks(q, k, v, is_causal=False):
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if is_causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(1), -torch.inf)
    return torch.softmax(scores, -1) @ v
"""


def _tried(report: Report) -> dict[str, tuple[str, int, int]]:
    return {v.law: (v.status, v.problems, v.samples) for v in report.verdicts}


@pytest.mark.parametrize("of", [2, 5])
def test_shards_are_together_the_unsharded_run(of: int) -> None:
    target = api.target_of(F.scaled_dot_product_attention)
    laws = ["layout", "weights", "causality", "heads", "batch", "dropout.off"]
    seen: dict[str, list[Any]] = {}

    def recording(law: Any) -> Any:
        body = law.attempt

        def attempt(target: Any, problem: Any, session: Any, evidence: Any) -> None:
            seen.setdefault(law.name, []).append(problem)
            body(target, problem, session, evidence)

        return attempt

    chosen = load_laws()
    with pytest.MonkeyPatch.context() as patch:
        for law in chosen.values():
            patch.setitem(law.__dict__, "attempt", recording(law))
        whole = run_checks(target, laws=laws, profile="glance", seed=3)
        problems, seen = seen, {}
        parts = [
            run_checks(target, laws=laws, profile="glance", seed=3, pick=lambda a, b, n=n: part_of(a, b, n + 1, of))
            for n in range(of)
        ]
    assert seen == problems
    assert len(problems) > 20
    together: dict[str, tuple[str, int, int]] = {}
    for part in parts:
        assert part.verdicts
        assert not together.keys() & _tried(part).keys()
        together |= _tried(part)
    assert together == _tried(whole)


def test_shards_weigh_the_same() -> None:
    target = api.target_of(F.scaled_dot_product_attention)
    laws = list(load_laws().values())
    parts = [part_of(laws, target, number, 4) for number in range(1, 5)]
    weights = [sum(law.share for law in part if law.not_applicable(target) is None) for part in parts]
    assert max(weights) - min(weights) <= 1.0
    assert sorted(law.name for part in parts for law in part) == sorted(law.name for law in laws)
    assert [law for law in laws if law in parts[0]] == parts[0]


def test_a_case_found_in_one_soak_is_the_first_that_another_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(LEAKS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    shared = str(tmp_path / "shared")
    one = ["soak", "mine.py:leaks", "--laws", "causality.future-keys", "--profile", "smoke", "--database", shared]
    assert main([*one, "--hours", "0.02"]) == 1
    assert "seeds 0 to 0" in capsys.readouterr().out
    target = api.target_of("mine.py:leaks")
    found = Found(database_of([shared]))
    (law,) = (law for law in load_laws().values() if law.name == "causality.future-keys")
    (case,) = found.problems(law, target)
    report = run_checks(target, laws=[law.name], seed=99, profile="smoke", found=found)
    assert report.verdicts[0].problems == 1
    assert report.verdicts[0].witness == case
    assert main(["check", "mine.py:leaks", "--laws", law.name, "--database", shared, "--no-files"]) == 1


def test_a_soak_says_within_which_seed_its_time_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["soak", "torch.sdpa", "--laws", "weights.hull", "--hours", "0.0008", "--seed-from", "5"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    found = re.search(r"seeds 5 to (\d+), the time ended within seed (\d+), ", last)
    assert found is not None, last
    assert found[1] == found[2]


def test_a_case_that_holds_now_is_tried_and_kept(tmp_path: Path) -> None:
    target = api.target_of(F.scaled_dot_product_attention)
    law = load_laws()["weights.uniform"]
    found = Found(InMemoryExampleDatabase())
    problem = next(iter(law.covering(target, 5)))
    found.keep(law, target, problem)
    without = run_checks(target, laws=[law.name], profile="glance")
    report = run_checks(target, laws=[law.name], profile="glance", found=found)
    assert report.exit_code == 0
    assert report.verdicts[0].problems == without.verdicts[0].problems + 1
    assert found.problems(law, target) == [problem]


def test_what_is_not_ours_in_a_database_is_let_be() -> None:
    target = api.target_of(F.scaled_dot_product_attention)
    law = load_laws()["weights.uniform"]
    found = Found(InMemoryExampleDatabase())
    key = f"attnlaws {law.name} on {target.address or target.name}".encode()
    for value in (b"\x00\xff", b"[]", b'{"attnlaws": 99, "problem": {}}', b'{"attnlaws": 1, "problem": {"batch": -1}}'):
        found.database.save(key, value)
    assert found.problems(law, target) == []


def test_read_only_databases_are_read_and_not_written(tmp_path: Path) -> None:
    target = api.target_of(F.scaled_dot_product_attention)
    law = load_laws()["weights.uniform"]
    problem, other = (problem for problem, _ in zip(law.covering(target, 5), range(2), strict=False))
    theirs, mine = str(tmp_path / "theirs"), str(tmp_path / "mine")
    Found(database_of([theirs])).keep(law, target, problem)
    both = Found(database_of([mine], [theirs]))
    assert both.problems(law, target) == [problem]
    both.keep(law, target, other)
    assert Found(database_of([theirs])).problems(law, target) == [problem]
    assert Found(database_of([mine])).problems(law, target) == [other]


def test_redis_keeps_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    fakeredis = pytest.importorskip("fakeredis", reason="fakeredis is not installed")
    redis = pytest.importorskip("redis", reason="redis is not installed")
    server = fakeredis.FakeServer()
    monkeypatch.setattr(redis.Redis, "from_url", lambda url: fakeredis.FakeRedis(server=server))
    target = api.target_of(F.scaled_dot_product_attention)
    law = load_laws()["weights.uniform"]
    problem = next(iter(law.covering(target, 5)))
    Found(database_of(["redis://somewhere/0"])).keep(law, target, problem)
    assert Found(database_of(["redis://somewhere/0"])).problems(law, target) == [problem]


def test_a_database_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(NoDatabase, match="is a file"):
        database_of([str(tmp_path / "file")])
    assert main(["check", "torch.sdpa", "--laws", "weights.uniform", "--database", str(tmp_path / "file")]) == 2


def test_a_soak_leaves_out_what_broke_and_ends_when_nothing_is_left() -> None:
    def twice(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return 2 * F.scaled_dot_product_attention(query, key, value)

    def run(**options: Any) -> Round:
        return Round.of(run_checks(api.target_of(twice), **options))

    laws = ["weights.uniform", "weights.value-linear"]
    rounds = []
    for made in soak(run, Found(InMemoryExampleDatabase()), seconds=60, profile="glance", laws=laws, first_seed=7):
        rounds.append(made)
        if len(rounds) == 3:
            break
    assert [made.seed for made in rounds] == [7, 8, 9]
    assert (rounds[0].broken, rounds[0].left) == (("weights.uniform",), 1)
    assert (rounds[1].broken, rounds[1].left) == ((), 1)
    only = soak(run, Found(InMemoryExampleDatabase()), seconds=60, profile="glance", laws=["weights.uniform"])
    assert len(list(only)) == 1


DIES = """
import ctypes
import torch

calls = 0


def attention(query, key, value):
    global calls
    calls += query.shape[2] == 3
    if calls == 40:
        ctypes.string_at(0)
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)
"""


def test_a_soak_survives_its_target(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DIES, encoding="utf-8")
    options = ["mine.py:attention", "--hours", "0.01", "--profile", "smoke", "--laws", "weights"]
    command = [sys.executable, "-m", "attnlaws.cli", "soak", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "SIGSEGV" in done.stdout
    assert re.search(r"mine.py:attention: seeds 0 to [1-9]", done.stdout), done.stdout
    assert (tmp_path / ".attnlaws" / "found").is_dir()


def test_the_plugin_works_with_xdist(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    pytester.makepyfile(mine=LEAKS)
    command = (
        "--attn-target=mine.py:leaks",
        "--attn-profile=smoke",
        "--pyargs",
        "attnlaws",
        "-k",
        "masked_are_zero or future_keys",
    )
    spread = pytester.runpytest_subprocess(*command, "-n", "2").parseoutcomes()
    assert spread == {"failed": 1, "skipped": 2}
