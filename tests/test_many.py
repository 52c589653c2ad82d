"""Many targets on one page: each in a process of its own, resumed, sharded, changed, and shown."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from attnlaws import api
from attnlaws.cli import main
from attnlaws.report.blocks import Cell, Folded, Page, Pairs, Section, Table, Text
from attnlaws.report.blocks_html import as_html
from attnlaws.report.many import changes, page
from attnlaws.run.check import run_checks
from attnlaws.run.many import (
    DIED,
    KILLED,
    NOT_ADAPTED,
    TRIED,
    Asked,
    Effort,
    Outcome,
    asked_for,
    place_of,
    run_many,
    shard_of,
    store,
    stored,
)
from attnlaws.targets.address import BadConfiguration
from attnlaws.targets.processes import descendants

TARGETS = """
import ctypes, os, sys, time
import torch

def right(q, k, v):
    print("noise " * 100000, file=sys.stderr)
    return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v

def ignores(q, k, v, is_causal=False):
    return right(q, k, v)

calls = 0

def _after(end):
    def attention(q, k, v):
        global calls
        calls += 1
        if calls > 200:
            end()
        return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v
    return attention

dies = _after(lambda: ctypes.string_at(0))
leaves = _after(lambda: os._exit(0))
hangs = _after(lambda: time.sleep(1000))

def dies_at_once(q, k, v):
    os._exit(0)
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """One of each kind, found by one run."""
    folder = tmp_path_factory.mktemp("many")
    (folder / "mine.py").write_text(TARGETS, encoding="utf-8")
    listed = folder / "targets.txt"
    names = ("ignores", "dies", "leaves", "dies_at_once", "absent")
    listed.write_text("# all of mine\n" + "".join(f"mine.py:{name}  # one\n" for name in names), encoding="utf-8")
    made = run_many(asked_for((), [listed]), folder / "results", Effort("glance", 0, 60.0), jobs=2)
    return {outcome.name.removeprefix("mine.py:"): outcome for outcome in made}


def test_what_one_target_does_to_its_process_is_told_and_the_others_go_on(outcomes: dict[str, Outcome]) -> None:
    assert {name: outcome.ended for name, outcome in outcomes.items()} == {
        "ignores": TRIED,
        "dies": TRIED,
        "leaves": TRIED,
        "dies_at_once": DIED,
        "absent": NOT_ADAPTED,
    }
    for name, how in (("dies", "SIGSEGV"), ("leaves", "os._exit(0)")):
        document = outcomes[name].document
        assert document is not None
        assert how in document["failures"][0]["raised"]
        assert len(document["laws"]) > 70
        assert outcomes[name].code == 1
    assert "os._exit(0), while the target was imported and probed" in outcomes["dies_at_once"].words
    assert outcomes["absent"].words == "mine.py has no 'absent'"
    assert outcomes["ignores"].cpu > 0


def test_an_option_that_is_ignored_is_a_status_of_its_own(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["ignores"].statuses["masks.sensitivity"] == "ignored"
    assert "torch" in outcomes["ignores"].packages


def test_a_leak_of_one_key_is_no_ignored_option() -> None:
    def leaks(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        if is_causal:
            scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(1), -torch.inf)
        return torch.softmax(scores, -1) @ value

    (verdict,) = run_checks(api.target_of(leaks), laws=["masks.sensitivity"], profile="smoke").verdicts
    assert verdict.status == "broken"
    assert not verdict.ignored


def test_the_page_shows_each_break_with_its_witness(outcomes: dict[str, Outcome]) -> None:
    made = page(list(outcomes.values()), Effort("glance", 0, 60.0))
    for text in (made.as_markdown(), as_html(made)):
        assert "5 implementations; 4 break a law" in text
        assert "smallest witness" in text
        assert "the causal flag makes no difference on this input" in text
        assert "SIGSEGV" in text
    parser = _Parser()
    parser.feed(as_html(made))
    assert len(parser.ids) == len(set(parser.ids))
    assert {href[1:] for href in parser.links} <= set(parser.ids)
    assert all(href.startswith("#") for href in parser.links)
    assert not re.search(r"(src|href)=.?https?:|@import|url\(", as_html(made))


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [found["id"] or ""] if "id" in found else []
        self.links += [found["href"] or ""] if tag == "a" else []


def test_texts_are_escaped() -> None:
    nasty = "<script>|`_*[x](y)&"
    table = Table("", ("a|b", nasty), ((Cell(nasty, "held", '"><b>', "x"), Cell("1")),))
    made = Page(
        nasty,
        (
            Text(nasty),
            Section("s", "x", (table, Folded(nasty, (Pairs(((nasty, nasty),)),)))),
        ),
    )
    assert "<script>" not in as_html(made)
    assert '"><b>' not in as_html(made)
    assert "<script>" not in made.as_markdown()
    rows = [line for line in made.as_markdown().splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {3}


class _NoProcess:
    """Stands for a target's process: it is over at once."""

    def __init__(self, asked: Asked, key: dict[str, Any], effort: Effort) -> None:
        self.made = Outcome(asked.name, json.loads(json.dumps(key)), TRIED, 0, document={"laws": []})

    def over(self) -> bool:
        return True

    def outcome(self) -> Outcome:
        return self.made


def test_what_is_done_is_not_run_again_unless_something_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnlaws.run.many._Process", _NoProcess)
    file, listed, results = tmp_path / "mine.py", tmp_path / "list.txt", tmp_path / "results"
    file.write_text(TARGETS, encoding="utf-8")
    listed.write_text("mine.py:right", encoding="utf-8")
    (asked,) = asked_for((), [listed])

    def kept(seed: int, resume: bool = True) -> bool:
        (outcome,) = run_many([asked], results, Effort("glance", seed, 60.0), resume=resume)
        return outcome.kept

    assert [kept(0), kept(0), kept(0, resume=False), kept(1), kept(1)] == [False, True, False, False, True]
    file.write_text(TARGETS + "\n# edited\n", encoding="utf-8")
    was = stored(results, "mine.py:right")
    assert [kept(1), kept(1)] == [False, True]
    now = stored(results, "mine.py:right")
    assert was is not None
    assert now is not None
    assert now.before is not None
    assert now.before["key"] == was.key
    assert {k for k in now.key if now.key[k] != was.key[k]} == {"file"}
    store(results, replace(now, code=124))  # it didn't end in its time, so it is not done
    assert not kept(1)
    place_of(results, "mine.py:right").write_text("{", encoding="utf-8")
    assert not kept(1)


def test_what_changed_is_said_with_what_of_the_code_is_another() -> None:
    law = {"name": "masks.window", "status": "held", "ignored": False}
    key = {"target": "x", "packages": {"x": "1.0"}}
    before = {"statuses": {"masks.window": "broken"}, "ended": TRIED, "key": key}
    now = Outcome("x", {"target": "x", "packages": {"x": "1.1"}}, TRIED, 0, document={"laws": [law]})
    assert changes(before, now) == (("masks.window", "broken → held"), ("x", "1.0 → 1.1"))
    assert changes({**before, "statuses": {"masks.window": "held"}}, now) == ()


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    outcome = Outcome("a b/c", {"target": "x", "packages": {}}, KILLED, 124, "words", 1.5, 0.5)
    store(tmp_path, outcome)
    assert stored(tmp_path, "a b/c") == outcome
    assert stored(tmp_path, "another") is None


def test_shards_of_targets_are_all_targets(tmp_path: Path) -> None:
    asked = asked_for([f"m.py:f{i}" for i in range(7)])
    parts = [shard_of(asked, number, 3) for number in (1, 2, 3)]
    assert sorted(a.name for part in parts for a in part) == [a.name for a in asked]


def test_lists_that_are_no_lists(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match="can't be read"):
        asked_for((), [tmp_path / "absent.txt"])
    (tmp_path / "empty.toml").write_text("", encoding="utf-8")
    with pytest.raises(BadConfiguration, match="declares no target"):
        asked_for((), [tmp_path / "empty.toml"])


def test_a_declared_environment_must_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.attnlaws.targets.x]\ntarget = 'torch.sdpa'\nenvironment = { SOME_SWITCH = '1' }\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SOME_SWITCH", raising=False)
    assert main(["probe", "x"]) == 2
    monkeypatch.setenv("SOME_SWITCH", "1")
    assert main(["probe", "x"]) == 0


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes in /proc")
def test_a_matrix_that_is_ended_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(100)\n", encoding="utf-8")
    command = [sys.executable, "-m", "attnlaws.cli", "matrix", "slow.py:attention", "--out", str(tmp_path / "out")]
    running = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
    deadline = time.monotonic() + 60
    while len(started := descendants(running.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(started) >= 2
    running.terminate()
    assert running.wait(30) == 143
    time.sleep(0.5)
    assert not [number for number in started if Path(f"/proc/{number}").exists() and not _zombie(number)]


def _zombie(number: int) -> bool:
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_the_command_writes_both_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(TARGETS, encoding="utf-8")
    (tmp_path / "list.txt").write_text("mine.py:hangs\n", encoding="utf-8")
    out = tmp_path / "page.html"
    command = ["matrix", "--list", str(tmp_path / "list.txt"), "--out", str(out), "--profile", "smoke"]
    assert main([*command, "--budget-each", "6s"]) == 124
    printed = capsys.readouterr().out
    assert "mine.py:hangs" in printed
    assert "1 implementations" in printed
    assert "out of time" in out.read_text(encoding="utf-8")
    assert "out of time" in out.with_suffix(".md").read_text(encoding="utf-8")
    assert json.loads(place_of(out.with_suffix(".results"), "mine.py:hangs").read_text(encoding="utf-8"))["code"] == 124
    assert main(["matrix"]) == 2
    assert main(["matrix", "--shard", "3/2", "x"]) == 2
