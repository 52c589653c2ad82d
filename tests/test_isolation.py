"""A target that ends, blocks or floods its process leaves a complete report and the right exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnlaws.laws.trial import Crashed
from attnlaws.run.watch import Death, Recorder, Relay
from attnlaws.targets.processes import ending

TARGETS = '''
import ctypes, os, signal, sys, time
import torch


def right(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v


def on_seven(act):
    """Right, but for what it does where there are seven keys or more: the probe knows fewer."""

    def attention(q, k, v):
        if k.shape[-2] >= 7:
            act()
        return right(q, k, v)

    return attention


def eat():
    held = []
    while True:
        held.append(torch.ones(1 << 22))


def sleep(library):
    while True:
        library.sleep(100)


def interrupt():
    raise KeyboardInterrupt


segfaults = on_seven(lambda: ctypes.string_at(0))
holds_the_lock = on_seven(lambda: sleep(ctypes.PyDLL(None)))
eats = on_seven(eat)
leaves_with_zero = on_seven(lambda: os._exit(0))
leaves_with_one = on_seven(lambda: os._exit(1))
interrupts = on_seven(interrupt)


def prints(q, k, v):
    os.write(1, b"x" * 20_000)
    os.write(2, b"y" * 20_000)
    print("z" * 20_000)
    print("the last words", file=sys.stderr)
    return right(q, k, v)


calls = [0]


def dies_later(q, k, v):
    calls[0] += 1
    if calls[0] == 60:
        os._exit(0)
    return right(q, k, v)


def dies_early(q, k, v):
    os._exit(0)
'''
LAWS = ("--laws", "weights.oracle", "--laws", "weights.hull", "--profile", "smoke")
CASE = {
    "attnlaws": 1,
    "law": "weights.oracle",
    "reason": "the process was killed",
    "problem": {"batch": 1, "heads": 1, "kv_heads": 1, "queries": 1, "keys": 7, "head_dim": 1, "value_dim": 1},
}
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("isolation")
    (folder / "deadly.py").write_text(TARGETS)
    return folder


def check(place: Path, name: str, *options: str) -> tuple[int, str, str]:
    """The exit code, standard output and standard error of a check."""
    return command(place, "check", f"deadly.py:{name}", *LAWS, *options)


def command(place: Path, *words: str) -> tuple[int, str, str]:
    """The same of any command, in a process of its own as a user starts it."""
    done = subprocess.run(
        [sys.executable, "-c", "from attnlaws.cli import main; raise SystemExit(main())", *words],
        cwd=place,
        env=ENV,
        capture_output=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize(
    ("name", "how", "options"),
    [
        ("segfaults", "was killed by signal 11 (SIGSEGV)", ()),
        ("leaves_with_zero", "ended with os._exit(0)", ()),
        ("holds_the_lock", "gave no answer for 1.5 s", ("--patience", "1.5s")),
        ("eats", "held more than 0.684 GiB of memory", ("--memory", "700MiB")),
        ("interrupts", "KeyboardInterrupt", ()),
    ],
)
def test_a_death_is_a_verdict_and_the_run_goes_on(place: Path, name: str, how: str, options: tuple[str, ...]) -> None:
    code, out, err = check(place, name, *options)
    assert code == 1, out + err
    assert how in out
    smallest = r"B=1 H=1 Lq=1 Lk=7 D=1 float32" if name != "eats" else r"B=\d H=\d+ .*Lk=\d+ "  # eating takes time
    assert re.search(rf"smallest witness   {smallest}", out), out
    for law in ("weights.oracle", "weights.hull"):
        assert re.search(rf"✗ {law} +crashed", out), out
    assert re.search(rf"deadly.py:{name}: 2 crashed; .* \(profile smoke, seed 0\)", out), out
    assert "Traceback" not in err


def test_the_end_of_the_process_is_never_green(place: Path) -> None:
    """os._exit(0) after so many calls, wherever that is: the law at hand is crashed, and the problem alone doesn't show it."""
    code, out, _ = check(place, "dies_later", "--laws", "weights.uniform", "--laws", "weights.shift")
    assert code == 1, out
    assert "ended with os._exit(0)" in out
    assert "depends on what was called before" in out
    assert re.search(r"✗ weights.oracle +crashed", out), out
    assert re.search(r"    seen on +B=", out), out
    assert "could not tell" not in out


def test_a_death_in_the_probe_is_told_as_such(place: Path) -> None:
    code, out, err = check(place, "dies_early")
    assert code == 3
    assert out == ""
    assert "the process ended with os._exit(0), while the target was imported and probed" in err


@pytest.mark.parametrize(
    ("name", "how", "options"),
    [
        ("segfaults", "the process was killed by signal 11 (SIGSEGV)", ()),
        ("holds_the_lock", "the process gave no answer for 1.5 s", ("--patience", "1.5s")),
        ("interrupts", "KeyboardInterrupt", ()),
    ],
)
def test_a_case_that_ends_the_process_is_replayed(place: Path, name: str, how: str, options: tuple[str, ...]) -> None:
    (place / "case.json").write_text(json.dumps(CASE))
    code, out, err = command(place, "replay", "case.json", "--target", f"deadly.py:{name}", *options)
    assert code == 1, out + err
    assert out.splitlines() == [
        f"weights.oracle on deadly.py:{name}",
        "    B=1 H=1 Lq=1 Lk=7 D=1 float32, seed 0",
        f"    crashed: {how}",
    ]
    code, out, err = command(place, "replay", "case.json", "--target", "deadly.py:right")
    assert code == 0, out + err
    assert out.splitlines()[-1] == "    held: the failure doesn't show any more"


def test_a_death_in_the_probe_of_a_replay_is_told_as_such(place: Path) -> None:
    (place / "case.json").write_text(json.dumps(CASE))
    code, _, err = command(place, "replay", "case.json", "--target", "deadly.py:dies_early")
    assert code == 3
    assert "the process ended with os._exit(0), while the target was imported and probed" in err


def test_megabytes_of_noise_are_counted_and_neither_shown_nor_waited_for(place: Path) -> None:
    code, out, err = check(place, "prints")
    assert code == 0, out + err
    assert len(out) < 5_000
    assert "xxxx" not in out + err
    found = re.search(r"printed by the target or what it imports: (\d+) bytes", out)
    assert found is not None
    assert int(found[1]) > 3_000_000
    assert "the last words" in out


def test_in_process_nothing_is_supervised(place: Path) -> None:
    code, out, _ = check(place, "leaves_with_one", "--in-process")
    assert code == 1
    assert "laws" not in out


def test_ctrl_c_ends_it_cleanly(place: Path) -> None:
    command = [sys.executable, "-c", "from attnlaws.cli import main; raise SystemExit(main())"]
    running = subprocess.Popen(
        [*command, "check", "deadly.py:holds_the_lock", *LAWS],
        cwd=place,
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert running.stderr is not None
    assert b"importing and probing" in running.stderr.readline()
    children = _children(running.pid)
    time.sleep(0.5)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert err.decode().strip().endswith("attnlaws: interrupted")
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def _children(process: int) -> list[str]:
    path = Path(f"/proc/{process}/task/{process}/children")
    return path.read_text().split() if path.exists() else []


def test_a_recorder_tells_another_process_what_it_was_told() -> None:
    recorder = Recorder()
    recorder.problem({"keys": 7})
    child = os.fork()
    if child == 0:
        recorder.begins()
        recorder.begins()
        recorder.ends()
        os._exit(0)
    os.waitpid(child, 0)
    depth, beats, problem = recorder.read()
    assert (depth, beats) == (1, 3)
    assert b"keys" in problem
    recorder.law()
    assert recorder.read()[2] == b""


def test_endings_are_told_apart() -> None:
    assert ending(11) == ("signal 11", "was killed by signal 11 (SIGSEGV)")
    assert ending(0) == ("exit 0", "ended with os._exit(0)")
    assert ending(3 << 8) == ("exit 3", "ended with os._exit(3)")
    assert Death("a", b"", "exit 0", "ended", "ouch").line == "the process ended; it printed last: ouch"
    assert isinstance(Crashed("line").call, type(None))


def test_a_relay_takes_any_text() -> None:
    sent: list[bytes] = []
    relay = Relay(sent.append, sys.stderr)
    relay.write("✗ \ud800")
    assert sent == ["✗ \\ud800".encode()]
