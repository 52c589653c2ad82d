"""The judge withstands the tricks on record, and accuses nobody who is right."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exploits import EXPLOITS

from attnlaws.cli import main
from attnlaws.run import judge as judging
from attnlaws.run.check import run_checks
from attnlaws.run.judge import CORRECT, CRASHES, HANGS, SUSPECT, WRONG, Judgement, Rules, judge
from attnlaws.run.ledger import Report
from attnlaws.targets.frames import BadMessage, Body, array_in, receive
from attnlaws.targets.processes import Limits
from attnlaws.targets.target import Target
from attnlaws.targets.worker import Starter

HERE = Path(__file__).parent
LAWS = ("layout.result", "weights.oracle", "conduct.history", "conduct.repeatable", "causality.jacobian")
#: a good sample of styles: layouts, masks, NumPy, tiles, several results
RIGHT = (
    "textbook_numpy_2d", "textbook_numpy_3d", "numpy_4d", "einsum_bshd",
)  # fmt: skip


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    """One program that starts processes, for all of them."""
    made = Starter()
    yield made
    made.close()


def judged(file: str, name: str, starter: Starter, **changes: object) -> Judgement:
    """The judgement with few laws and small effort."""
    rules = {"profile": "smoke", "laws": LAWS, "limits": Limits(2.0, 2 << 30), "budget": 60.0, **changes}
    return judge(str(HERE / file), name, Rules(**rules), starter=starter)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", EXPLOITS)
def test_no_trick_passes_for_right(name: str, starter: Starter) -> None:
    limits = Limits(1.0 if name == "hangs" else 30.0, 700 << 20)
    forbidden = ("torch.nn.functional.scaled_dot_product_attention",)
    found = judged("exploits.py", name, starter, limits=limits, forbid=forbidden)
    assert found.verdict in (WRONG, CRASHES, HANGS, SUSPECT), str(found)
    assert found.code == 1
    assert EXPLOITS[name] in found.reason, str(found)


@pytest.mark.parametrize("name", RIGHT)
def test_nobody_who_is_right_is_accused(name: str, starter: Starter) -> None:
    found = judged("right_attention.py", name, starter, limits=Limits(20.0, 4 << 30))
    assert found.verdict == CORRECT, str(found)
    assert found.code == 0
    assert found.report is not None
    assert found.report.problems > 20


def test_the_verdict_is_written_as_json_and_the_exit_code_tells_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sub.py").write_text("def attention(query, key, value):\n    return query * 0\n")
    out = tmp_path / "v.json"
    code = main(["judge", str(tmp_path / "sub.py"), "--budget", "60s", "--json", str(out), "--seed", "3"])
    found = json.loads(out.read_text())
    assert code == found["exit_code"] == 1
    assert found["verdict"] == "suspect"
    assert "answers zeros" in found["reason"]
    assert found["seed"] == 3
    assert found["target"].endswith("sub.py:attention")
    assert capsys.readouterr().out.startswith(found["target"])


GHOST = """
import os, sys, time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:  # no child of anyone known; it waits for the verdict, and writes its own
        for _ in range(300):
            time.sleep(0.1)
            if os.path.exists({path!r}):
                time.sleep(0.5)
                with open({path!r}, "w") as file:
                    file.write("correct")
    os._exit(0)


def attention(query, key, value):
    return query * 0
"""


def test_nothing_outlives_the_verdict(tmp_path: Path) -> None:
    out = tmp_path / "v.json"
    (tmp_path / "sub.py").write_text(GHOST.format(path=str(out)))
    assert main(["judge", str(tmp_path / "sub.py"), "--budget", "60s", "--json", str(out)]) == 1
    time.sleep(1.5)
    assert json.loads(out.read_text())["verdict"] == "suspect"


def test_what_was_declined_is_told(tmp_path: Path, starter: Starter) -> None:
    text = "import torch\n\n\ndef attention(q, k, v):\n    if max(q.shape[2], k.shape[2]) > 6:\n"
    text += "        raise NotImplementedError('too long')\n"
    text += "    return torch.nn.functional.scaled_dot_product_attention(q, k, v)\n"
    (tmp_path / "sub.py").write_text(text)
    found = judge(
        str(tmp_path / "sub.py"), "", Rules(budget=60.0, profile="smoke", laws=("weights.oracle",)), starter=starter
    )
    assert (found.verdict, found.code) == (CORRECT, 0)
    assert found.report is not None
    declined = found.report.declined
    assert declined > 0
    assert found.to_json()["declined"] == declined
    asked = declined + found.report.problems
    assert (
        found.reason
        == f"in what it takes; it declined {declined} of {asked} problems itself: NotImplementedError: too long"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import os\nos._exit(0)\n", "ended with os._exit(0), when the file was imported"),
        ("raise ValueError('no')\n", "importing"),
        ("def f(x): return x\n", "no function of query, key and value"),
        ("def attention(q, k, v): return None\n", "can't be called as attention"),
    ],
)
def test_what_can_not_be_judged_is_told(text: str, reason: str, tmp_path: Path, starter: Starter) -> None:
    (tmp_path / "sub.py").write_text(text)
    found = judge(str(tmp_path / "sub.py"), "", Rules(budget=60.0), starter=starter)
    assert (found.verdict, found.code) == ("could not judge", 3)
    assert reason in found.reason


def test_a_budget_that_ends_first_says_what_was_tried(monkeypatch: pytest.MonkeyPatch, starter: Starter) -> None:
    def ends_first(target: Target, **options: Any) -> Report:
        return replace(run_checks(target, **options), out_of_time=True)

    monkeypatch.setattr(judging, "run_checks", ends_first)
    found = judged("right_attention.py", RIGHT[0], starter)
    assert (found.verdict, found.code) == ("could not judge", 124)
    assert found.report is not None
    tried = sum(verdict.problems > 0 for verdict in found.report.verdicts)
    assert 3 <= tried <= len(LAWS)
    assert found.reason == f"the time budget ended first; {tried} of {len(LAWS)} laws were tried, and none broke"


def test_a_budget_that_ends_in_the_import_says_so(tmp_path: Path, starter: Starter) -> None:
    (tmp_path / "late.py").write_text("import time\ntime.sleep(30)\n")
    found = judge(str(tmp_path / "late.py"), "", Rules(budget=0.2), starter=starter)
    assert (found.verdict, found.code) == ("could not judge", 124)
    assert found.reason == "the time budget ended first, before any law was tried"


def _sent(data: bytes, nonce: str | None) -> object:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        return receive(lambda size: theirs.recv(size, socket.MSG_WAITALL), nonce)


def test_only_the_answer_to_the_request_is_taken() -> None:
    body = Body()
    said = body.add(np.arange(6.0).reshape(2, 3))
    data = body.message({"results": said}, "abc")
    head, raw = _sent(data, "abc")  # type: ignore[misc]
    assert np.array_equal(array_in(raw, head["results"]), np.arange(6.0).reshape(2, 3))
    forged = data[:-8] + np.float64(7.0).tobytes()
    for wrong, nonce in ((data, "abd"), (forged, "abc"), (b'{"verdict": "correct"}' * 10, "abc")):
        with pytest.raises(BadMessage):
            _sent(wrong, nonce)
    for outside in (
        {"at": 0},
        {"at": 8, "shape": [2, 3], "type": "float64"},
        {"at": 0, "shape": [1], "type": "object"},
    ):
        with pytest.raises(BadMessage):
            array_in(raw, outside)
