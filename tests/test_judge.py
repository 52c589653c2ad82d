"""The judge withstands the tricks on record, and accuses nobody who is right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from exploits import EXPLOITS

from attnlaws.run.judge import CORRECT, CRASHES, HANGS, SUSPECT, WRONG, Judgement, Rules, judge
from attnlaws.targets.processes import Limits
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
