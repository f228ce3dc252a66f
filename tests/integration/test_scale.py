"""Every measurement of growth in short.

The full sizes are ``make scale``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scale.curve import Setup
from tests.scale.every import EVERY
from tests.trials.frame import NotHere

#: Measurements that are short enough for make test.
QUICK = {"workers", "sequences"}
#: Factor by which a short run on a crowded machine may exceed a law.
GENEROUS = 2.5


def _marked(name: str) -> object:
    return name if name in QUICK else pytest.param(name, marks=pytest.mark.long)


@pytest.mark.parametrize("name", [_marked(name) for name in EVERY])
def test_cost_grows_as_promised(name: str, tmp_path: Path) -> None:
    try:
        curve = EVERY[name].run(Setup(tmp_path, short=True))
    except NotHere as error:
        pytest.skip(str(error))
    print(curve)
    assert len(curve.points) > 1 and curve.laws
    for law in curve.laws:
        assert law.value <= GENEROUS * max(1.0, law.limit), str(law)
