"""Every measurement of growth in short; planted growth and planted loss are found.

The full sizes are ``make scale``.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from headrace_server.core.dispatch import Dispatcher
from tests.patience import PATIENCE_S
from tests.scale import accounts, crowd, page
from tests.scale.board import Board
from tests.scale.curve import Curve, Law, Setup, shown
from tests.scale.every import EVERY
from tests.scale.line import Cost, Sample
from tests.scale.plot import drawn
from tests.scale.world import Shape, World
from tests.trials.frame import NotHere

#: Measurements that are short enough for make test.
QUICK = {"trainers", "sequences", "simulated", "ranks"}
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


# That they can fail


def test_rows_that_are_given_twice_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = np.repeat(np.arange(crowd.RECORDS[1]), 4)
    ids[7] = 2
    cost = Cost(10, 10, 1.0, {"worker": 1.0, "front": 1.0, "trainer": 1.0})
    monkeypatch.setattr(crowd, "records_file", lambda setup: tmp_path / "none.tfrecord")
    monkeypatch.setattr(crowd, "_shared", lambda *of: (cost, [5, 5], ids))
    with pytest.raises(AssertionError, match="rows lost or twice with 1 trainers: 1 and not 0"):
        crowd.trainers(Setup(tmp_path, short=True))


def test_a_batch_that_nobody_gets_is_seen_in_simulated_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Dispatcher, "_put_back", lambda *of: None)
    world = World(Shape(trainers=3, servers=2, partitions=4, batches=6))
    world.run(lambda: world.trainers[0].held)
    world.trainers[0].lose()
    with pytest.raises(RuntimeError, match="after 60 s of simulated time it is not so yet"):
        world.run_to_the_end(60.0)


def test_a_law_that_is_passed_is_told() -> None:
    curve = Curve("rows")
    for x, cost in [(1, 10.0), (100, 30.0), (10_000, 900.0)]:
        curve.add(x, {"µs": cost})
    curve.grows("µs", 1, 100, 4.0)
    curve.grows("µs", 100, 10_000, 4.0)
    assert [law.kept for law in curve.laws] == [True, False]
    assert list(curve.passed) == [Law("µs at 10,000 / at 100", 30.0, 4.0)]
    assert str(curve.laws[1]) == "µs at 10,000 / at 100: 30.00 (at most 4): **passed**"


def test_processor_time_is_that_of_all_threads_and_not_of_waiting() -> None:
    before, own = accounts.cpu_s(os.getpid()), time.process_time()
    stop, ready = threading.Event(), threading.Event()

    def spin() -> None:
        end = time.thread_time() + 0.1
        while time.thread_time() < end:
            pass
        ready.set()
        stop.wait(PATIENCE_S)

    thread = threading.Thread(target=spin)
    thread.start()
    assert ready.wait(PATIENCE_S)
    used, own = accounts.cpu_s(os.getpid()) - before, time.process_time() - own
    stop.set()
    thread.join()
    assert used >= 0.095 and abs(used - own) < 0.05


def test_a_cost_is_what_lies_between_two_samples() -> None:
    first = Sample(10.0, 100, 3200, {"worker": 1.0, "front": 0.5})
    cost = Cost.between(first, Sample(12.0, 300, 9600, {"worker": 1.4, "front": 0.6}))
    assert (cost.batches, cost.rows, cost.seconds) == (200, 6400, 2.0)
    assert cost.per_batch_us == pytest.approx(2500) and cost.of("worker") == pytest.approx(2000)
    assert cost.per_row_us == pytest.approx(2500 / 32)


def test_a_board_is_written_by_trainers_and_read_by_who_measures(tmp_path: Path) -> None:
    board = Board(tmp_path / "board", 2)
    trainers = [Board(tmp_path / "board") for _ in range(2)]
    trainers[0].here(0)
    assert not board.all_here
    trainers[1].here(1)
    trainers[0].took(0, 32)
    trainers[1].took(1, 8)
    trainers[1].took(1, 8)
    assert board.all_here and board.batches == [1, 2] and board.rows == 48
    board.start()
    trainers[0].wait_for_start()
    assert not trainers[1].over
    board.end()
    assert trainers[1].over


# The page


def test_the_page_has_a_part_for_every_measurement_and_each_was_measured() -> None:
    text = page.PAGE.read_text()
    assert page.PART.findall(text), "no part"
    assert [name for _, name, _ in page.PART.findall(text)] == list(EVERY)
    for name in EVERY:
        assert f"<!-- measured: {name} -->\n| " in text, f"python -m tests.scale {name} --write"
    assert {path.name for path in page.PICTURES.glob("scale-*.svg")} == {
        line.partition("pictures/")[2].rstrip(")")
        for line in text.splitlines()
        if "](pictures/scale-" in line
    }


def test_a_part_is_written_anew_and_the_others_stay() -> None:
    curve = Curve("trainers", machine="2 cores")
    curve.add(1, {"batches per s": 1234.5, "share": 1.0})
    curve.add(2, {"batches per s": 3.21, "share": 0.5})
    before = page.PAGE.read_text()
    after = page.rewritten(before, {"trainers": curve})
    assert "| 1 | 1,234 | 1 |\n| 2 | 3.21 | 0.50 |" in after
    assert "Measured with 2 cores." in after
    assert page.rewritten(after, {}) == after
    assert after.partition("## Sequences")[2] == before.partition("## Sequences")[2]


def test_a_plot_has_a_line_for_each_figure_and_a_point_for_each_x() -> None:
    curve = Curve("rows <n>", plotted=("µs", "MB"))
    for x in (1, 10, 100):
        curve.add(x, {"µs": 2.0 * x, "MB": 5.0, "other": 1.0})
    picture = drawn(curve, "what it shows")
    assert picture.count("<circle") == 6 and picture.count('stroke-width="2"') == 2
    assert "rows &lt;n&gt;" in picture and 'aria-label="what it shows"' in picture


def test_numbers_are_shown_with_the_digits_that_say_something() -> None:
    assert [shown(x) for x in (12345.6, 12.34, 1.234, 7, "ten")] == [
        *("12,346", "12.3", "1.23", "7", "ten")
    ]
