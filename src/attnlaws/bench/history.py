"""Runs kept as pytest-benchmark keeps them, `.benchmarks/MACHINE/0001_NAME.json`, and what they tell when they are read again.

pytest-benchmark's own compare reads these files. What attnlaws needs beside its statistics is under `extra_info`.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .calibrate import VERSION

Floats = NDArray[np.float64]
FOLDER = ".benchmarks"
FORMAT = 1


class BadBaseline(ValueError):
    """A file that is no stored run; the message says why."""


@dataclass(frozen=True)
class Machine:
    """What must be the same for two runs to be compared, and what may differ and is told."""

    cpu: str
    cores: int
    architecture: str
    system: str
    device: str
    python: str
    torch: str
    numpy: str

    def same(self, other: Machine) -> bool:
        """Whether times of the two can be compared."""
        return self._hardware == other._hardware

    @property
    def _hardware(self) -> tuple[str, int, str, str, str]:
        return self.cpu, self.cores, self.architecture, self.system, self.device

    def other_software(self, other: Machine) -> str:
        """What is installed here in another version than there, as words."""
        names = [name for name in ("python", "torch", "numpy") if getattr(self, name) != getattr(other, name)]
        return ", ".join(f"{name} {getattr(other, name)} then, {getattr(self, name)} now" for name in names)


def this_machine(device: str = "cpu") -> Machine:
    """The machine that this runs on."""
    name = device
    if device.startswith("cuda"):
        import torch

        name = torch.cuda.get_device_name(device)
    return Machine(
        _cpu(),
        os.cpu_count() or 0,
        platform.machine(),
        platform.system(),
        name,
        platform.python_version(),
        _version("torch"),
        _version("numpy"),
    )


def _cpu() -> str:
    """The processor by its name, as far as the system tells it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


@dataclass(frozen=True)
class Kept:
    """One case of a stored run: medians of its blocks, log ratios to the calibration kernel."""

    target: str
    case: str
    ratios: Floats
    seconds: float
    clock: str
    machine: Machine
    calibration: int
    file: str
    when: str


@dataclass(frozen=True)
class Timed:
    """What is kept of one case of a run. `seconds` are those of each sample, `ratios` log ratios to the calibration."""

    target: str
    case: str
    name: str
    seconds: Floats
    times: int
    ratios: Floats
    clock: str
    more: Mapping[str, Any]


def save(timed: Sequence[Timed], machine: Machine, name: str, folder: Path | None = None) -> Path:
    """Write a run; the file."""
    place = (folder or Path(FOLDER)) / _machine_id()
    place.mkdir(parents=True, exist_ok=True)
    numbers = [int(path.name[:4]) for path in place.glob("[0-9][0-9][0-9][0-9]_*.json")]
    path = place / f"{max(numbers, default=0) + 1:04d}_{re.sub(r'[^A-Za-z0-9_.]+', '-', name)}.json"
    content = {
        "machine_info": _machine_info(machine),
        "commit_info": _commit(),
        "benchmarks": [_entry(item, machine) for item in timed],
        "datetime": datetime.now(UTC).isoformat(),
        "version": _version("pytest-benchmark"),
    }
    path.write_text(json.dumps(content, indent=4), encoding="utf-8")
    return path


def _commit() -> dict[str, Any]:
    """The commit that is checked out here, where git tells it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        commit, branch = git("rev-parse", "HEAD"), git("rev-parse", "--abbrev-ref", "HEAD")
        when, dirty = git("show", "-s", "--format=%cI"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        commit, branch, when, dirty = "unversioned", "(unknown)", None, False
    return {"id": commit, "time": when, "dirty": dirty, "project": Path.cwd().name, "branch": branch}


def _machine_id() -> str:
    """The folder in which pytest-benchmark keeps the runs of such a machine."""
    python = ".".join(platform.python_version_tuple()[:2])
    return f"{platform.system()}-{platform.python_implementation()}-{python}-{platform.architecture()[0]}"


def _machine_info(machine: Machine) -> dict[str, Any]:
    return {
        "node": platform.node(),
        "processor": platform.processor(),
        "machine": platform.machine(),
        "python_implementation": platform.python_implementation(),
        "python_version": platform.python_version(),
        "release": platform.release(),
        "system": platform.system(),
        "cpu": {"brand_raw": machine.cpu, "count": machine.cores},
    }


def _entry(item: Timed, machine: Machine) -> dict[str, Any]:
    """One benchmark, named as the test in benchmarks/ names it."""
    name = f"test_speed[{item.name}-{item.target}]"
    mine = {
        "format": FORMAT,
        "target": item.target,
        "case": item.case,
        "clock": item.clock,
        "machine": asdict(machine),
        "calibration": VERSION,
        "ratios": [round(float(x), 6) for x in np.median(item.ratios, axis=1)],
        **item.more,
    }
    return {
        "group": item.case,
        "name": name,
        "fullname": f"benchmarks/test_attention_speed.py::{name}",
        "params": {"case": item.name, "target": item.target},
        "param": f"{item.name}-{item.target}",
        "extra_info": {"attnlaws": mine},
        "options": {"disable_gc": True, "timer": item.clock, "warmup": True},
        "stats": statistics_of(item.seconds.reshape(-1)) | {"iterations": item.times},
    }


def statistics_of(seconds: Floats) -> dict[str, Any]:
    """The statistics that pytest-benchmark keeps of a sample."""
    q1, median, q3 = (float(q) for q in np.quantile(seconds, [0.25, 0.5, 0.75]))
    fence = 1.5 * (q3 - q1)
    inside = seconds[(seconds >= q1 - fence) & (seconds <= q3 + fence)]
    mean, deviation = float(seconds.mean()), float(seconds.std(ddof=1)) if seconds.size > 1 else 0.0
    far, away = int((np.abs(seconds - mean) > deviation).sum()), int(seconds.size - inside.size)
    return {
        "min": float(seconds.min()),
        "max": float(seconds.max()),
        "mean": mean,
        "stddev": deviation,
        "rounds": int(seconds.size),
        "median": median,
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": away,
        "stddev_outliers": far,
        "outliers": f"{far};{away}",
        "ld15iqr": float(inside.min()),
        "hd15iqr": float(inside.max()),
        "ops": 1.0 / mean,
        "total": float(seconds.sum()),
    }


def read(path: Path) -> list[Kept]:
    """The cases of a stored run that attnlaws kept; others in the file are left out. Raises BadBaseline."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        benchmarks = content["benchmarks"]
        mine = [(entry, entry["extra_info"]["attnlaws"]) for entry in benchmarks if "attnlaws" in entry["extra_info"]]
        kept = [_kept(entry, own, path, content["datetime"]) for entry, own in mine if own["format"] == FORMAT]
    except OSError as error:
        raise BadBaseline(f"{path} can't be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BadBaseline(f"{path} is no stored run: {type(error).__name__} {error}") from error
    if not kept:
        raise BadBaseline(f"{path} holds no run that attnlaws bench --save wrote")
    return kept


def _kept(entry: dict[str, Any], own: dict[str, Any], path: Path, when: str) -> Kept:
    ratios = np.asarray(own["ratios"], dtype=np.float64)[:, None]
    if not len(ratios) or not np.isfinite(ratios).all():
        raise ValueError("without ratios")
    return Kept(
        str(own["target"]),
        str(own["case"]),
        ratios,
        float(entry["stats"]["median"]),
        str(own["clock"]),
        Machine(**own["machine"]),
        int(own["calibration"]),
        path.name,
        str(when),
    )


def baseline(path: Path, target: str) -> list[Kept]:
    """The cases of one target in a stored run: of this one, or of the only one there is. Raises BadBaseline."""
    kept = read(path)
    names = {item.target for item in kept}
    if target not in names and len(names) > 1:
        raise BadBaseline(f"{path} holds {', '.join(sorted(names))}, and not {target}")
    return [item for item in kept if item.target == target or target not in names]


def past(target: str, machine: Machine, folder: Path | None = None) -> dict[str, list[Kept]]:
    """By case, the earlier runs of a target on such a machine, oldest first. Files of others are passed over."""
    found: dict[str, list[Kept]] = {}
    for path in (folder or Path(FOLDER)).rglob("*.json"):
        try:
            kept = read(path)
        except BadBaseline:
            continue
        for item in kept:
            if item.target == target and item.machine.same(machine) and item.calibration == VERSION:
                found.setdefault(item.case, []).append(item)
    return {case: sorted(items, key=lambda item: item.when) for case, items in found.items()}


def since_change(runs: Sequence[Kept]) -> Sequence[Kept]:
    """The runs from the last change of level on."""
    found = change_point([float(np.median(run.ratios)) for run in runs])
    return runs if found is None else runs[found.at :]


@dataclass(frozen=True)
class Change:
    """Where a series of runs changes: the first run after it, by how much, and how likely that is by chance."""

    at: int
    ratio: float
    p_value: float


def change_point(levels: Sequence[float], *, alpha: float = 0.01, smallest: float = 0.05) -> Change | None:
    """The change of level in a series of log ratios, one a run; None where none is seen, or none as large as `smallest`.

    At each place with two runs or more on both sides, the difference of means over its standard error; the largest counts.
    p by permuting the series 4999 times, which takes care of the choice of the place (Pettitt's question, by permutation).
    """
    series = np.asarray(levels, dtype=np.float64)
    if len(series) < 6:
        return None
    rng = np.random.Generator(np.random.Philox(key=[len(series), 7]))
    shuffled = np.array([rng.permutation(series) for _ in range(4999)])
    sizes = _steps(series[None])[0]
    at = int(np.argmax(sizes))
    p_value = float(((_steps(shuffled).max(axis=1) >= sizes[at]).sum() + 1) / 5000)
    first = at + 2
    ratio = float(np.exp(series[first:].mean() - series[:first].mean()))
    far = max(ratio, 1 / ratio) > 1 + smallest
    return Change(first, ratio, p_value) if p_value <= alpha and far else None


def _steps(series: Floats) -> Floats:
    """(rows, places): |difference of means| sqrt(a b / n) before and after each place that leaves two runs on both sides."""
    n = series.shape[1]
    before = np.arange(2, n - 1)
    sums = np.cumsum(series, axis=1)
    left = sums[:, before - 1] / before
    right = (sums[:, -1:] - sums[:, before - 1]) / (n - before)
    return np.asarray(np.abs(left - right) * np.sqrt(before * (n - before) / n))
