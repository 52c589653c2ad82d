"""Many targets, each tried in a process of its own: what one does to its process is told, and the others go on.

A result is a file, and says what it was made with; where all of that is as before it needn't be made again.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import IO, Any

from .. import __version__
from ..targets.address import BadConfiguration, Settings, configured_targets
from ..targets.presets import MODELS, PRESETS

#: how a process ended: with a document, without one since the target can't be had, by itself, or by us
TRIED, NOT_ADAPTED, DIED, KILLED = "tried", "not adapted", "died", "killed"
#: the exit code of what didn't end in its time: not done, so it is tried again
OUT_OF_TIME = 124
#: seconds a process may take beyond twice its budget: for the start, and for the end of what doesn't react
SLACK = 45.0
#: bytes of what a process says that are kept
SAID = 2000
#: what an adapter may import without being about it
_COMMON = ("numpy", "torch")


@dataclass(frozen=True)
class Asked:
    """A target to be tried: its name, and where it is declared and its files lie."""

    name: str
    folder: Path
    root: Path
    settings: Settings


@dataclass(frozen=True)
class Effort:
    """How much each target gets."""

    profile: str = "quick"
    seed: int = 0
    budget: float = 120.0


@dataclass(frozen=True)
class Outcome:
    """What became of one target. `document` is the JSON of its run where there is one, `words` what to say where not."""

    name: str
    key: Mapping[str, Any]
    ended: str
    code: int
    words: str = ""
    seconds: float = 0.0
    cpu: float = 0.0
    document: Mapping[str, Any] | None = None
    #: the statuses of the laws, and the packages, when this target was tried before with other code
    before: Mapping[str, Any] | None = None
    #: whether it was found done, and not run
    kept: bool = field(default=False, compare=False)

    @property
    def packages(self) -> Mapping[str, str]:
        """The versions of what the target comes from."""
        found: Mapping[str, str] = self.key.get("packages", {})
        return found

    @property
    def statuses(self) -> dict[str, str]:
        """How each law ended; an option that is accepted and ignored is a status of its own."""
        laws = self.document["laws"] if self.document is not None else ()
        return {law["name"]: IGNORED if law["ignored"] else str(law["status"]) for law in laws}


#: a law is broken since an option that the target accepts has no effect
IGNORED = "ignored"


# -- what is asked for ---------------------------------------------------------------------------------------------


def asked_for(names: Sequence[str], lists: Sequence[Path] = ()) -> list[Asked]:
    """The targets of a command: names, then those of list files, each once.

    A list is a TOML file with [tool.attnlaws.targets], all of which are meant, or a text with a name a line. Names of files in
    it are relative to its folder. Raises BadConfiguration.
    """
    found = [_asked(name, Path.cwd(), Path.cwd()) for name in names]
    for path in lists:
        found += _listed(path)
    return list({asked.name: asked for asked in reversed(found)}.values())[::-1]


def _asked(name: str, folder: Path, root: Path) -> Asked:
    return Asked(name, folder.resolve(), root.resolve(), configured_targets(root).get(name, Settings(name)))


def _listed(path: Path) -> list[Asked]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfiguration(f"{path} can't be read: {error}") from error
    folder = path.resolve().parent
    if path.suffix == ".toml":
        declared = configured_targets(path)
        if not declared:
            raise BadConfiguration(f"{path} declares no target under [tool.attnlaws.targets]")
        return [Asked(name, folder, path.resolve(), settings) for name, settings in declared.items()]
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [_asked(line, folder, folder) for line in lines if line]


def shard_of(items: Sequence[Asked], number: int, of: int) -> list[Asked]:
    """The targets of one machine out of `of`, 1 to `of`."""
    return list(items[number - 1 :: of])


# -- what a result was made with -----------------------------------------------------------------------------------


def key_of(asked: Asked, effort: Effort) -> dict[str, Any]:
    """What a result depends on: where two keys are equal, so is what would be found."""
    return {
        "target": asked.settings.target,
        "declared": {k: v for k, v in asdict(asked.settings).items() if v and k != "target"},
        "packages": packages_of(asked.settings.target, asked.folder),
        "file": _digest(_file_of(asked.settings.target, asked.folder)),
        "attnlaws": f"{__version__} {_own_digest()}",
        "python": ".".join(map(str, sys.version_info[:3])),
        **asdict(effort),
    }


def packages_of(address: str, folder: Path) -> dict[str, str]:
    """The distributions that an address is about with their versions; of a file, those that it imports."""
    path = _file_of(address, folder)
    if path is not None and path.suffix == ".py":
        modules = _imported(path)
    elif address in PRESETS or address in MODELS:
        head = re.split(r"[.\[]", address)[0]
        modules = {"attnlaws"} if head == "reference" else {head}
        modules |= {"onnxruntime"} if head == "onnx" and "reference" not in address else set()
    else:
        modules = {address.partition(":")[0].split(".")[0]}
    found = {name for module in modules for name in _distributions().get(module, ())}
    return {name: _installed()[name] for name in sorted({*found, *_COMMON} & _installed().keys()) if name != "attnlaws"}


def _file_of(address: str, folder: Path) -> Path | None:
    place = address.partition(" as ")[0].partition("(")[0].rpartition(":")[0] or address
    path = folder / place
    return path if path.suffix in (".py", ".onnx", ".so", ".dylib", ".dll") and path.is_file() else None


def _imported(path: Path) -> set[str]:
    """The packages that a Python file imports, anywhere in it."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return set()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {item.name.split(".")[0] for item in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


@cache
def _distributions() -> Mapping[str, list[str]]:
    """The distributions by the packages that are imported. Reading them takes a second."""
    return packages_distributions()


@cache
def _installed() -> dict[str, str]:
    """The versions of the distributions here."""
    found = {}
    for name in {name for names in _distributions().values() for name in names}:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _digest(path: Path | None) -> str:
    return "" if path is None else hashlib.sha256(path.read_bytes()).hexdigest()[:12]


@cache
def _own_digest() -> str:
    """A digest of what decides on a result, the laws among it: other laws find something else."""
    from ..laws.load import law_folders

    made, package = hashlib.sha256(), Path(__file__).parents[1]
    rooms = (package / name for name in ("faults", "judge", "laws", "problems", "run", "targets"))
    for folder in (*rooms, *law_folders()):
        for path in sorted(folder.rglob("*.py")):
            if path != Path(__file__):
                made.update(path.read_bytes())
    return made.hexdigest()[:12]


# -- results in files ----------------------------------------------------------------------------------------------


def place_of(folder: Path, name: str) -> Path:
    """The file of a target's result."""
    return folder / f"{re.sub(r'[^A-Za-z0-9.-]+', '_', name)[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}.json"


def stored(folder: Path, name: str) -> Outcome | None:
    """The result in a folder; None where there is none that can be read."""
    try:
        data = json.loads(place_of(folder, name).read_text(encoding="utf-8"))
        return Outcome(**data, kept=True)
    except (OSError, ValueError, TypeError):
        return None


def store(folder: Path, outcome: Outcome) -> None:
    """Write a result, whole or not at all."""
    path = place_of(folder, outcome.name)
    data = {k: v for k, v in asdict(outcome).items() if k != "kept"}
    path.with_suffix(".part").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    os.replace(path.with_suffix(".part"), path)


def _with_history(made: Outcome, last: Outcome | None) -> Outcome:
    """The result with what was found before, where it was made with something else."""
    if last is None or last.key == made.key:
        return replace(made, before=None if last is None else last.before)
    return replace(made, before={"statuses": last.statuses, "ended": last.ended, "key": dict(last.key)})


# -- processes -----------------------------------------------------------------------------------------------------


def run_many(
    targets: Sequence[Asked], folder: Path, effort: Effort, *, jobs: int = 2, resume: bool = False
) -> Iterator[Outcome]:
    """The outcome of each target, as they come; what is done already first, where `resume` says so."""
    folder.mkdir(parents=True, exist_ok=True)
    waiting: list[tuple[Asked, dict[str, Any], Outcome | None]] = []
    for asked in targets:
        key, last = key_of(asked, effort), stored(folder, asked.name)
        if resume and last is not None and last.code != OUT_OF_TIME and last.key == json.loads(json.dumps(key)):
            yield last
        else:
            waiting.append((asked, key, last))
    running: list[tuple[_Process, Outcome | None]] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                asked, key, last = waiting.pop(0)
                running.append((_Process(asked, key, effort), last))
            time.sleep(0.05)
            for process, last in [item for item in running if item[0].over()]:
                running.remove((process, last))
                outcome = _with_history(process.outcome(), last)
                store(folder, outcome)
                yield outcome
    finally:
        for process, _ in running:
            process.kill()
            process.place.cleanup()


class _Process:
    """One target in its process."""

    def __init__(self, asked: Asked, key: Mapping[str, Any], effort: Effort) -> None:
        self.asked, self.key, self.effort = asked, json.loads(json.dumps(key)), effort
        self.place = tempfile.TemporaryDirectory(prefix="attnlaws-")
        self.out, self.stage = (Path(self.place.name) / name for name in ("run.json", "stage.txt"))
        request = {
            "name": asked.name,
            "root": str(asked.root),
            "out": str(self.out),
            "stage": str(self.stage),
            **asdict(effort),
        }
        threads = {name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        self.started = time.monotonic()
        self.killed = False
        self.code: int | None = None
        self.cpu = 0.0
        self.running = subprocess.Popen(
            [sys.executable, "-m", "attnlaws.one_of_many", json.dumps(request)],
            cwd=asked.folder,
            env={**os.environ, **threads, **asked.settings.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.running.stderr is not None
        self.said = _Tail(self.running.stderr)

    def over(self) -> bool:
        """Whether it ended; one that is beyond its time is ended."""
        if time.monotonic() - self.started > 2 * self.effort.budget + SLACK and not self.killed:
            self.killed = True
            self.kill()
        if hasattr(os, "wait4"):  # with the processor's time, which subprocess doesn't tell
            pid, status, usage = os.wait4(self.running.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                self.running.returncode = self.code
                self.cpu = usage.ru_utime + usage.ru_stime
        else:
            self.code = self.running.poll()
        return self.code is not None

    def kill(self) -> None:
        """End it with all that it started."""
        try:
            os.killpg(self.running.pid, 9)
        except (AttributeError, ProcessLookupError, PermissionError):
            self.running.kill()

    def outcome(self) -> Outcome:
        """What became of it, read once it is over."""
        self.kill()  # what it started and left
        seconds, code = time.monotonic() - self.started, self.code if self.code is not None else -1
        document = _read(self.out)
        stage = self.stage.read_text(encoding="utf-8") if self.stage.is_file() else "starting"
        self.place.cleanup()
        made = Outcome(self.asked.name, self.key, TRIED, code, "", round(seconds, 1), round(self.cpu, 1), document)
        said = self.said.text()
        last = said.strip().splitlines()[-1] if said.strip() else ""
        if self.killed:
            words = f"didn't end: killed after {seconds:.0f} s, {stage}"
            return replace(made, ended=KILLED, code=OUT_OF_TIME, words=words)
        if document is not None and code == document["exit_code"]:
            error = document["error"]
            return replace(made, ended=NOT_ADAPTED, document=None, words=str(error)) if error is not None else made
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return replace(made, ended=DIED, document=None, words=f"the process ended {how}, {stage}; {last}".rstrip("; "))


class _Tail:
    """The end of what a process says; all of it is read, so that it never waits, and little is kept."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self.pipe, self.kept = pipe, b""
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        while chunk := self.pipe.read1(1 << 16):  # type: ignore[attr-defined]
            self.kept = (self.kept + chunk)[-SAID:]

    def text(self) -> str:
        """What is kept, when the process is over."""
        self.thread.join(2.0)
        return self.kept.decode("utf-8", "replace")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
    except (OSError, ValueError):
        return None
