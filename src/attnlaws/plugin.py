"""The pytest plugin: `pytest --attn-target=pkg.mod:fn --pyargs attnlaws` gives one item a law."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .laws.law import Law
    from .targets.target import Target

#: what the laws are tried on where no target is given: the shipped implementations
SHIPPED = (
    "attnlaws.reference.attention:attention",
    "attnlaws.reference.attention:chunked_attention",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """--attn-target, --attn-profile, --attn-seed, --attn-device."""
    group = parser.getgroup("attnlaws", "the laws of attention")
    group.addoption(
        "--attn-target", action="append", metavar="TARGET", help="the target: pkg.mod:attr, file.py:attr or a preset"
    )
    group.addoption(
        "--attn-profile", default="quick", choices=("quick", "full", "soak", "smoke"), help="how much is tried"
    )
    group.addoption("--attn-seed", type=int, default=0, help="the seed of the problems")
    group.addoption("--attn-device", default="cpu", help="the device of the tensors")


def pytest_configure(config: pytest.Config) -> None:
    """`--pyargs attnlaws` means the laws, wherever the installation keeps them."""
    if config.getoption("pyargs", False) and "attnlaws" in config.args:
        from .laws.load import law_folders

        at = config.args.index("attnlaws")
        config.args[at : at + 1] = [str(folder) for folder in law_folders()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each law is tried on each target."""
    if "attention_law" in metafunc.fixturenames:
        targets = metafunc.config.getoption("attn_target") or SHIPPED
        metafunc.parametrize("attention_law", targets, indirect=True, ids=[str(t) for t in targets], scope="session")


@pytest.fixture(scope="session")
def _attention_targets() -> dict[str, Any]:
    """Targets adapted so far in this session."""
    return {}


@pytest.fixture(scope="session")
def attention_law(request: pytest.FixtureRequest, _attention_targets: dict[str, Any]) -> Callable[[Law], None]:
    """A function that tries one law on the target: it fails with the report's block, skips what is not applicable."""
    from . import api

    config = request.config
    name = str(request.param)
    if name not in _attention_targets:
        _attention_targets[name] = _adapted(name, config.getoption("attn_device"))
    target: Target = _attention_targets[name]

    def attempt(law: Law) -> None:
        __tracebackhide__ = True
        report = api.check_one(
            target, law.name, profile=config.getoption("attn_profile"), seed=config.getoption("attn_seed")
        )
        api.conclude(report, Path(str(config.rootpath)) / ".attnlaws")

    return attempt


def _adapted(name: str, device: str) -> Target:
    from . import api
    from .targets.address import BadConfiguration, NoSuchTarget
    from .targets.conventions import UnknownChoice
    from .targets.signature import CannotAdapt

    try:
        return api.target_of(name, device=device)
    except (NoSuchTarget, CannotAdapt, BadConfiguration, UnknownChoice) as error:
        raise pytest.UsageError(f"attnlaws: {error}") from error
