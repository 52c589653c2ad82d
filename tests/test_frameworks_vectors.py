"""Test vectors: right code passes them, wrong code doesn't, and the script that compares needs nothing of attnlaws."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attnlaws import api
from attnlaws.cli import main

MINE = """
import numpy as np

def right(query, key, value, visible=None, bias=None, causal=False, scale=1.0):
    dtype, wide = query.dtype, np.promote_types(query.dtype, np.float32)
    groups = query.shape[1] // key.shape[1]
    q, k, v = query.astype(wide), key.astype(wide).repeat(groups, 1), value.astype(wide).repeat(groups, 1)
    scores = q @ k.swapaxes(-1, -2) * wide.type(scale)
    if bias is not None:
        scores = scores + bias
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if visible is not None:
        scores = np.where(visible, scores, -np.inf)
    largest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    total = weights.sum(-1, keepdims=True)
    return (weights @ v / np.where(total > 0, total, 1)).astype(dtype)

def tiled_heads(query, key, value, **options):
    groups = query.shape[1] // key.shape[1]
    return right(query, np.tile(key, (1, groups, 1, 1)), np.tile(value, (1, groups, 1, 1)), **options)

def no_mask(query, key, value, visible=None, **options):
    return right(query, key, value, **options)

def half_inside(query, key, value, **options):
    return right(*(x.astype(np.float16) for x in (query, key, value)), **options).astype(query.dtype)

def causal_only(query, key, value, causal=True, scale=1.0):
    return right(query, key, value, causal=causal, scale=scale)

def nothing(query, key, value):
    return query
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    assert main(["vectors", "--out", str(folder), "--cases", "120"]) == 0
    (folder / "mine.py").write_text(MINE)
    return folder


def checked(folder: Path, what: str) -> tuple[int, str]:
    command = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); sys.argv = ['check.py', {what!r}]; "
               f"import runpy; runpy.run_path({str(folder / 'check.py')!r}, run_name='__main__')"]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stdout + done.stderr


def test_each_case_says_what_it_is_for(made: Path) -> None:
    index = json.loads((made / "index.json").read_text())
    assert len(index["cases"]) == 120
    for case in index["cases"]:
        assert case["reasons"]
        with np.load(made / case["file"]) as arrays:
            assert {n: list(arrays[n].shape) for n in arrays.files} == case["arrays"]
            assert (arrays["bound"] >= arrays["strict"]).all()
            assert not arrays["query"].dtype.hasobject
    assert "attnlaws" not in (made / "check.py").read_text()
    assert "200" not in (made / "README.md").read_text().splitlines()[2]


def test_right_code_passes(made: Path) -> None:
    code, said = checked(made, "mine:right")
    assert code == 0, said
    assert "120 right, 0 wrong, 0 not compared" in said


@pytest.mark.parametrize("name", ["tiled_heads", "no_mask", "half_inside"])
def test_wrong_code_does_not_pass(made: Path, name: str) -> None:
    code, said = checked(made, f"mine:{name}")
    assert code == 1, said


def test_what_is_not_taken_is_counted(made: Path) -> None:
    code, said = checked(made, "mine:causal_only")
    assert code == 0, said
    assert " 0 not compared" not in said
    code, said = checked(made, "mine:nothing")
    assert code == 2, said


def test_outputs_in_files(made: Path, tmp_path: Path) -> None:
    index = json.loads((made / "index.json").read_text())
    for case in index["cases"]:
        with np.load(made / case["file"]) as arrays:
            np.save(tmp_path / Path(case["file"]).with_suffix(".npy"), arrays["expected"])
    code, said = checked(made, str(tmp_path))
    assert code == 0, said
    np.save(tmp_path / "0001.npy", np.load(tmp_path / "0001.npy") + 1.0)
    (tmp_path / "0002.npy").unlink()
    code, said = checked(made, str(tmp_path))
    assert code == 1
    assert "118 right, 1 wrong, 1 not compared" in said


def test_the_conventions_are_those_of_the_target(tmp_path: Path) -> None:
    def attention(q, k, v, attn_mask=None):  # type: ignore[no-untyped-def]
        import torch

        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        return torch.softmax(scores if attn_mask is None else scores.masked_fill(~attn_mask, -torch.inf), -1) @ v

    assert api.vectors(attention, tmp_path, cases=60, dtypes=["float32"]) == 60
    index = json.loads((tmp_path / "index.json").read_text())
    assert {case["dtype"] for case in index["cases"]} == {"float32"}
    assert not any(case["options"]["causal"] for case in index["cases"])
    empty = [case for case in index["cases"] if "a row without a visible key gives: nan" in case["reasons"]]
    assert empty
    with np.load(tmp_path / empty[0]["file"]) as arrays:
        assert np.isnan(arrays["expected"]).any()


def test_the_same_seed_writes_the_same_files(tmp_path: Path) -> None:
    for name in "ab":
        api.vectors(out=tmp_path / name, cases=12, seed=3)
    for first in (tmp_path / "a").iterdir():
        assert first.read_bytes() == (tmp_path / "b" / first.name).read_bytes(), first


def test_another_folder_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    assert main(["vectors", "--out", str(tmp_path)]) == 2
    assert "holds other files" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]
