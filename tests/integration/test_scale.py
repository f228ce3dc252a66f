"""Every measurement of growth in short.

The full sizes are ``make scale``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scale import page
from tests.scale.curve import Setup
from tests.scale.every import EVERY
from tests.trials.frame import NotHere

#: Measurements that are short enough for make test.
QUICK = {"trainers", "sequences"}
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
    print(page.part(name, curve))
    assert len(curve.points) > 1 and curve.laws
    for law in curve.laws:
        assert law.value <= GENEROUS * max(1.0, law.limit), str(law)


# The page


def test_the_page_has_a_part_for_every_measurement_and_shows_each_picture() -> None:
    text = page.PAGE.read_text()
    assert sorted(name for _, name, _ in page.PART.findall(text)) == sorted(EVERY)
    assert {path.name for path in page.PICTURES.glob("scale-*.svg")} == {
        line.partition("pictures/")[2].rstrip(")")
        for line in text.splitlines()
        if "](pictures/scale-" in line
    }
