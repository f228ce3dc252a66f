"""What of a quarantine outlives its server."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_proto.errors import ServerError
from headrace_server import pipeline as hs
from headrace_server.process.config import FeedConfig, RunConfig
from headrace_server.process.diary import STEP, Entry
from headrace_server.supervisor.casualties import Casualties, kills_for_memory


def config(state: Path | None) -> RunConfig:
    pipeline = hs.from_examples([{"i": 1}]).batch(1).options(on_bad_example="skip")
    feed = FeedConfig("f", pipeline.declaration(), (), 1)
    where = None if state is None else str(state)
    return RunConfig((feed,), "", (), state_directory=where)


def convict(casualties: Casualties, row: int) -> None:
    for alone in (False, False, True):
        verdict = casualties.died(Entry(STEP, "f", 0, "FILE", (row,), alone), "x" * 9999)
    assert len(verdict.quarantined) < 4000 and verdict.failure is None


def test_rows_that_are_out_are_known_to_the_next_server_of_the_directory(tmp_path: Path):
    (tmp_path / "feeds" / "f").mkdir(parents=True)
    casualties = Casualties(config(tmp_path))
    assert casualties.marks() == {}
    convict(casualties, 7)
    convict(casualties, 3)
    assert [row for row, _ in casualties.marks()["f"]["out"]] == [7, 3]
    assert [row for row, _ in Casualties(config(tmp_path)).marks()["f"]["out"]] == [3, 7]


def test_without_a_state_directory_nothing_is_written(tmp_path: Path):
    casualties = Casualties(config(None))
    convict(casualties, 7)
    casualties.passed("f", [7])
    assert list(tmp_path.iterdir()) == []


def test_a_row_whose_loss_can_not_be_noted_fails_the_feed(tmp_path: Path):
    casualties = Casualties(config(tmp_path))  # there is no feeds/f
    for alone in (False, False, True):
        verdict = casualties.died(Entry(STEP, "f", 0, "FILE", (7,), alone), "words")
    assert verdict.failure is not None and "quarantine.json" in verdict.failure[1]


def test_a_damaged_list_is_refused_with_the_next_step(tmp_path: Path):
    (tmp_path / "feeds" / "f").mkdir(parents=True)
    (tmp_path / "feeds" / "f" / "quarantine.json").write_text("[[1]]")
    with pytest.raises(ServerError, match=r"quarantine\.json is damaged: .* mend it"):
        Casualties(config(tmp_path))


def test_kills_for_memory_are_a_count():
    assert kills_for_memory() >= 0
