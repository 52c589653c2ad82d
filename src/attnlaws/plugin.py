"""The pytest plugin: `pytest --attn-target=pkg.mod:fn --pyargs attnlaws` gives one item a law."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .api import AnyTarget
    from .laws.named import AnyLaw
    from .run.known import Known

#: what the laws are tried on where no target is given: the shipped implementations
SHIPPED = (
    "attnlaws.reference.attention:attention",
    "attnlaws.reference.attention:chunked_attention",
)
SHIPPED_LAYERS = (
    "attnlaws.reference.heads:MultiHeadAttention(d_in=10, d_out=12, context_length=40, num_heads=3, qkv_bias=True)",
)
SHIPPED_MODELS = tuple(f"reference.{name}" for name in ("gpt", "mistral", "bert", "t5"))
FIXTURE = "attention_law"


def pytest_addoption(parser: pytest.Parser) -> None:
    """--attn-target, --attn-profile, --attn-seed, --attn-device, --attn-known."""
    group = parser.getgroup("attnlaws", "the laws of attention")
    group.addoption(
        "--attn-target", action="append", metavar="TARGET", help="the target: pkg.mod:attr, file.py:attr or a preset"
    )
    group.addoption(
        "--attn-profile", default="quick", choices=("quick", "full", "soak", "smoke"), help="how much is tried"
    )
    group.addoption("--attn-seed", type=int, default=0, help="the seed of the problems")
    group.addoption("--attn-device", default="cpu", help="the device of the tensors")
    group.addoption(
        "--attn-known", metavar="FILE", help="the list of known failures (attnlaws-known.toml beside pyproject.toml)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """`--pyargs attnlaws` means the laws, wherever the installation keeps them."""
    if config.getoption("pyargs", False) and "attnlaws" in config.args:
        from .laws.load import law_folders

        at = config.args.index("attnlaws")
        config.args[at : at + 1] = [str(folder) for folder in law_folders()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each law is tried on each target of its kind."""
    law = getattr(metafunc.function, "law", None)
    if law is None or FIXTURE not in metafunc.fixturenames:
        return
    shipped = law.kind == "part" and not metafunc.config.getoption("attn_target")
    names = _shipped_parts(law) if shipped else _targets(metafunc.config, law.kind)
    targets: list[str | None] = [*names] or [None]  # None: taken out below
    metafunc.parametrize(FIXTURE, targets, indirect=True, ids=[str(t) for t in targets], scope="session")


def _targets(config: pytest.Config, kind: str) -> list[str]:
    """The targets of one kind in this session."""
    from .targets.address import kind_at

    given = config.getoption("attn_target")
    if not given:
        return list({"attention": SHIPPED, "layer": SHIPPED_LAYERS, "model": SHIPPED_MODELS}[kind])
    found = config.stash.setdefault(_KINDS, {})
    return [name for name in given if found.setdefault(name, kind_at(name)) == kind]


def _shipped_parts(law: Any) -> list[str]:
    """The parts of the reference that a law is about."""
    from .targets.shipped_parts import shipped_parts

    return [name for name, part in shipped_parts().items() if part.kind in law.parts]


_KINDS = pytest.StashKey[dict[str, str]]()
_ENTRIES = pytest.StashKey[tuple["Known", ...]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A law without a target of its kind is no item."""

    def without(item: pytest.Item) -> bool:
        given = getattr(getattr(item, "callspec", None), "params", {})
        return FIXTURE in given and given[FIXTURE] is None

    items[:] = [item for item in items if not without(item)]


@pytest.fixture(scope="session")
def _attention_targets() -> dict[str, Any]:
    """Targets adapted so far in this session."""
    return {}


@pytest.fixture(scope="session")
def attention_law(request: pytest.FixtureRequest, _attention_targets: dict[str, Any]) -> Callable[[AnyLaw], None]:
    """A function that tries one law on a target of its kind: it fails with the report's block, skips what is not applicable."""
    from . import api
    from .run.expect import expected

    config = request.config
    name = str(request.param)
    if name not in _attention_targets:
        _attention_targets[name] = _adapted(name, config.getoption("attn_device"))
    target: AnyTarget = _attention_targets[name]
    entries = _known_failures(config)

    def attempt(law: AnyLaw) -> None:
        __tracebackhide__ = True
        report = api.check_one(
            target, law.name, profile=config.getoption("attn_profile"), seed=config.getoption("attn_seed")
        )
        api.conclude(expected(report, entries), Path(str(config.rootpath)) / ".attnlaws")

    return attempt


def _known_failures(config: pytest.Config) -> tuple[Known, ...]:
    """The entries of the list of known failures, read once."""
    from .report.known_file import BadKnown, beside_project, read

    if _ENTRIES not in config.stash:
        given = config.getoption("attn_known")
        path = Path(given) if given else beside_project(config.rootpath)
        try:
            config.stash[_ENTRIES] = read(path) if given or path.exists() else ()
        except BadKnown as error:
            raise pytest.UsageError(f"attnlaws: {error}") from error
    return config.stash[_ENTRIES]


def _adapted(name: str, device: str) -> AnyTarget:
    from . import api
    from .targets.address import BadConfiguration, NoSuchTarget
    from .targets.conventions import UnknownChoice
    from .targets.device import NoDevice
    from .targets.shipped_parts import shipped_parts
    from .targets.signature import CannotAdapt

    if name in shipped_parts():
        return shipped_parts()[name]
    try:
        return api.target_of(name, device=device)
    except (NoSuchTarget, CannotAdapt, NoDevice, BadConfiguration, UnknownChoice) as error:
        raise pytest.UsageError(f"attnlaws: {error}") from error
