"""C functions through ctypes, and programs that speak npz: right ones green, wrong ones red, broken ones told."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from attnlaws import api
from attnlaws.targets.address import NoSuchTarget
from attnlaws.targets.process import program_function
from attnlaws.targets.signature import CannotAdapt
from attnlaws.targets.target import Target

HERE = Path(__file__).parent
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
compiled = pytest.mark.skipif(COMPILER is None, reason="no C compiler")
SOME = ("layout", "weights", "scores", "causality", "masks", "heads", "conduct.repeatable", "conduct.whole-output")


def library(folder: Path, *macros: str) -> str:
    assert COMPILER is not None
    made = folder / "libmine.so"
    command = [COMPILER, "-O2", "-shared", "-fPIC", *(f"-D{m}" for m in macros), "-o", str(made)]
    subprocess.run([*command, str(HERE / "attention.c"), "-lm"], check=True)
    return f"{made}:attention"


@compiled
def test_a_c_function_is_green(tmp_path: Path) -> None:
    target = api.target_of(library(tmp_path))
    assert isinstance(target, Target)
    a = target.abilities
    assert (a.dtypes, a.routes, a.causal, a.grouped, a.scale) == (
        ("float32", "float64"),
        ("additive",),
        True,
        True,
        True,
    )
    report = api.run(target, laws=SOME, profile="smoke")
    assert report.exit_code == 0, str(report)


@compiled
@pytest.mark.parametrize(
    ("macro", "law"),
    [
        ("NO_SCALE", "scores.default-scale"),
        ("ONE_MORE", "causality.future-keys"),
        ("MASK_IGNORED", "masks.sensitivity"),
        ("TILED_GROUPS", "heads.grouped"),
        ("LAST_UNWRITTEN", "weights.oracle"),
    ],
)
def test_a_wrong_c_function_is_caught(macro: str, law: str, tmp_path: Path) -> None:
    report = api.check(library(tmp_path, macro), laws=[law], profile="smoke")
    assert [v.law for v in report.failures] == [law], str(report)


def test_what_is_no_library_is_told(tmp_path: Path) -> None:
    with pytest.raises(NoSuchTarget, match="there is no file"):
        api.target_of(f"{tmp_path}/libmine.so:attention")
    (tmp_path / "libmine.so").write_text("no library")
    with pytest.raises(CannotAdapt, match="can't be loaded"):
        api.target_of(f"{tmp_path}/libmine.so:attention")


@compiled
def test_a_function_that_the_library_lacks_is_told(tmp_path: Path) -> None:
    with pytest.raises(CannotAdapt, match="has no function 'flash'"):
        api.target_of(library(tmp_path).replace(":attention", ":flash"))


def program(kind: str) -> str:
    return f"process: {sys.executable} {HERE / 'program_attention.py'} {kind}"


def test_a_program_is_green() -> None:
    report = api.check(program("right"), laws=SOME, profile="smoke")
    assert report.exit_code == 0, str(report)


def test_a_wrong_program_is_caught() -> None:
    report = api.check(program("scale"), laws=["scores.default-scale"], profile="smoke")
    assert [v.law for v in report.failures] == ["scores.default-scale"], str(report)


def test_a_program_may_decline() -> None:
    target = api.target_of(program("decline"))
    assert isinstance(target, Target)
    assert not target.abilities.causal
    assert "no causal attention here" in target.abilities.refusals["causal"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("die", "the program ended with 3"),
        ("hang", "says nothing for 1 s"),
        ("chatter", "must begin with its length"),
    ],
)
def test_a_program_that_breaks_is_told_and_started_again(kind: str, words: str) -> None:
    attend = program_function(program(kind).removeprefix("process:"), patience=1.0 if kind == "hang" else 20.0)
    q = np.ones((1, 1, 2, 4), np.float32)
    if kind != "hang":
        assert attend(q, q, q).shape == q.shape
    started = time.monotonic()
    with pytest.raises(Exception, match=words):
        attend(q, q, q, np.zeros((2, 2), np.float32))
    assert time.monotonic() - started < 30.0
    if kind != "hang":
        assert np.array_equal(attend(q, q, q), q)


def test_a_program_that_is_not_there_is_told() -> None:
    with pytest.raises(CannotAdapt, match="can't be started"):
        api.target_of("process: ./no_such_program")
