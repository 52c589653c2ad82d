"""The facts about the folders that everything rests on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnlaws.laws.load import law_folders, load_laws
from attnlaws.report.document import SCHEMA_FILE

ROOT = Path(__file__).resolve().parents[1]
LIST_LAWS = "from attnlaws.laws.load import load_laws; print(*sorted(load_laws()))"


def run(*command: str, cwd: Path, path: str = "") -> str:
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as `pip install .` lays it out."""
    place = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(place), str(ROOT), cwd=place)
    return place


def test_the_standard_library_keeps_its_statistics() -> None:
    printed = run(sys.executable, "-c", "import statistics; print(statistics.mean([1, 3]))", cwd=ROOT)
    assert printed.split() == ["2"]


def test_no_init_file_makes_a_package_of_the_law_folders() -> None:
    assert not [f for name in ("properties", "statistics", "benchmarks") for f in (ROOT / name).glob("__init__.py")]


def test_installed_and_editable_find_the_same_laws(installed: Path, tmp_path: Path) -> None:
    mine = " ".join(sorted(load_laws()))
    assert len(mine.split()) > 30
    assert run(sys.executable, "-c", LIST_LAWS, cwd=tmp_path, path=str(installed)).strip() == mine
    assert all(folder.is_dir() for folder in law_folders())


def test_pyargs_collects_the_same_laws_everywhere(installed: Path, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "pytest", "--pyargs", "attnlaws", "--collect-only", "-q", "-p", "no:cacheprovider")
    command = (*command, "--attn-target=torch.sdpa")
    there = run(*command, cwd=tmp_path, path=str(installed))
    here = run(*command, cwd=tmp_path)

    def names(text: str) -> list[str]:
        return sorted(line.split("::", 1)[1] for line in text.splitlines() if "::" in line)

    assert len(names(here)) == len(load_laws())
    assert names(there) == names(here)


def test_the_schema_of_reports_is_installed(installed: Path) -> None:
    assert (installed / "attnlaws/report/schema.json").read_bytes() == SCHEMA_FILE.read_bytes()


def test_laws_import_no_framework() -> None:
    for folder in law_folders():
        for path in folder.glob("test_*.py"):
            text = path.read_text(encoding="utf-8")
            assert "import torch" not in text, path
            assert "import jax" not in text, path


def test_each_law_says_its_formula_and_takes_its_name_from_its_family() -> None:
    for law in load_laws().values():
        assert len(law.formula) > 40, law.name
        assert law.name.count(".") == 1
        assert not law.statement.endswith(".")


def test_no_law_is_its_own_basis() -> None:
    laws = load_laws()

    def above(name: str, passed: tuple[str, ...] = ()) -> None:
        assert name not in passed, " -> ".join((*passed, name))
        for basis in laws[name].basis:
            assert basis in laws, f"{name} has the basis {basis}, which is no law"
            above(basis, (*passed, name))

    for name in laws:
        above(name)
