"""The C function of tests/attention.c, compiled when this is imported; see docs/targets.md for its signature."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from attnlaws.targets.c_function import c_function

SOURCE = Path(__file__).resolve().parents[2] / "tests" / "attention.c"


def _library() -> Path:
    built = Path(tempfile.mkdtemp()) / "libattention.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", built, SOURCE, "-lm"], check=True)
    return built


attention = c_function(_library(), "attention")
