"""From deaths to rows: which rows are suspect, which are out, and when a feed fails."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace_server as hs
from headrace_proto.errors import ServerError
from headrace_server.process.config import FeedConfig, RunConfig
from headrace_server.process.worker_diary import IDLE, STEP, Entry
from headrace_server.state.left_out_file import quarantine_file, write_left_out
from headrace_server.supervisor.quarantine import MOST_ROWS, DeathVerdict, Quarantine


def config(*feeds: str, state: Path | None = None, on_bad_example: str = "skip") -> RunConfig:
    pipeline = hs.from_examples([{"i": 1}]).batch(1).options(on_bad_example=on_bad_example)
    configs = tuple(FeedConfig(name, pipeline.declaration(), (), 1) for name in feeds)
    where = None if state is None else str(state)
    return RunConfig(configs, "", (), state_directory=where)


def knowing(state: Path, *rows: int) -> RunConfig:
    """A server whose state directory lists these rows."""
    file = quarantine_file(state, "f")
    file.parent.mkdir(parents=True)
    write_left_out(file, dict.fromkeys(rows, "text"))
    return config("f", state=state)


def together(*rows: int, feed: str = "f") -> Entry:
    return Entry(STEP, feed, 0, "FILE, record 1 … record 9", rows)


def alone(row: int, needed: bool = False) -> Entry:
    return Entry(STEP, "f", 0, f"FILE, record {row}", (row,), alone=True, needed=needed)


@pytest.fixture
def skipping() -> Quarantine:
    return Quarantine(config("f"))


def test_a_death_between_two_steps_is_nobodys_fault(skipping: Quarantine):
    assert skipping.died(Entry(IDLE), "words") == DeathVerdict()
    assert skipping.died(Entry(STEP, "f", 0), "words") == DeathVerdict()
    assert skipping.marks() == {"f": {}}


def test_a_row_is_watched_after_one_death_suspect_after_two_and_out_after_the_third_alone(
    skipping: Quarantine,
):
    assert skipping.died(together(1, 2, 3), "words") == DeathVerdict(expected=False)
    assert skipping.marks() == {"f": {"watched": [1, 2, 3]}}
    assert skipping.died(together(2, 3, 4), "words") == DeathVerdict(expected=True)
    assert skipping.marks()["f"]["suspect"] == [2, 3]
    verdict = skipping.died(alone(3), "last words")
    text = "FILE, record 3: its worker died 3 times while reading it: last words"
    assert verdict == DeathVerdict(expected=True, quarantined=text)
    assert skipping.left_out("f") == {3: text}
    assert skipping.marks()["f"] == {"out": [(3, text)], "suspect": [2], "watched": [1, 2, 4]}


def test_rows_that_a_life_has_worked_through_are_forgotten(skipping: Quarantine):
    skipping.died(together(1, 2), "words")
    skipping.died(together(1, 2), "words")
    skipping.passed("f", [1, 2])
    assert skipping.marks() == {"f": {}}
    assert not skipping.died(together(1, 2), "words").expected


def test_the_second_row_of_a_chunk_needs_no_more_than_its_own_third_death(skipping: Quarantine):
    for _ in range(2):
        skipping.died(together(1, 2, 3), "words")
    assert skipping.died(alone(1), "words").quarantined
    assert skipping.died(alone(3), "words").quarantined
    assert sorted(skipping.left_out("f")) == [1, 3]


def test_where_bad_examples_fail_the_feed_so_does_a_row_that_kills():
    quarantine = Quarantine(config("f", on_bad_example="fail"))
    quarantine.died(together(1), "words")
    quarantine.died(together(1), "words")
    verdict = quarantine.died(alone(1), "words")
    assert verdict.failure is not None and verdict.failure[0] == "f"
    assert "record 1: its worker died 3 times while reading it: words" in verdict.failure[1]
    assert quarantine.left_out("f") == {}


def test_rows_that_kill_only_together_fail_the_feed_and_none_is_left_out(skipping: Quarantine):
    for _ in range(2):
        skipping.died(together(1, 2), "words")
    verdict = skipping.died(together(1, 2), "words")
    assert verdict.failure is not None and "one by one" in verdict.failure[1]
    assert skipping.left_out("f") == {}


@pytest.mark.parametrize(
    ("entry", "words"),
    [(alone(-1), "can not be read past it"), (alone(7, needed=True), "depend on its place")],
)
def test_a_deadly_row_that_can_not_be_left_out_fails_the_feed(
    skipping: Quarantine, entry: Entry, words: str
):
    for _ in range(2):
        skipping.died(together(*entry.rows), "words")
    verdict = skipping.died(entry, "words")
    assert verdict.failure is not None and words in verdict.failure[1]
    assert skipping.left_out("f") == {}


def test_a_worker_that_did_not_know_of_a_row_that_is_out_convicts_no_other(tmp_path: Path):
    quarantine = Quarantine(knowing(tmp_path, 5))
    for _ in range(4):
        assert quarantine.died(together(4, 5, 6), "words") == DeathVerdict(expected=True)
    assert "watched" not in quarantine.marks()["f"]


def test_too_many_rows_are_not_the_rows_fault(tmp_path: Path):
    quarantine = Quarantine(knowing(tmp_path, *range(MOST_ROWS)))
    for _ in range(2):
        quarantine.died(together(1000), "words")
    verdict = quarantine.died(alone(1000), "words")
    assert verdict.failure is not None and f"{MOST_ROWS} examples" in verdict.failure[1]


def test_feeds_are_judged_apart():
    quarantine = Quarantine(config("f", "g"))
    quarantine.died(together(1), "words")
    assert not quarantine.died(together(1, feed="g"), "words").expected


def convict(quarantine: Quarantine, row: int) -> None:
    for alone in (False, False, True):
        verdict = quarantine.died(Entry(STEP, "f", 0, "FILE", (row,), alone), "x" * 9999)
    assert len(verdict.quarantined) < 4000 and verdict.failure is None


def test_rows_that_are_out_are_known_to_the_next_server_of_the_directory(tmp_path: Path):
    (tmp_path / "feeds" / "f").mkdir(parents=True)
    quarantine = Quarantine(config("f", state=tmp_path))
    assert quarantine.marks() == {"f": {}}
    convict(quarantine, 7)
    convict(quarantine, 3)
    assert [row for row, _ in quarantine.marks()["f"]["out"]] == [7, 3]
    assert [row for row, _ in Quarantine(config("f", state=tmp_path)).marks()["f"]["out"]] == [3, 7]


def test_without_a_state_directory_nothing_is_written(tmp_path: Path):
    quarantine = Quarantine(config("f"))
    convict(quarantine, 7)
    quarantine.passed("f", [7])
    assert list(tmp_path.iterdir()) == []


def test_a_row_whose_loss_can_not_be_noted_fails_the_feed(tmp_path: Path):
    quarantine = Quarantine(config("f", state=tmp_path))  # there is no feeds/f
    for alone in (False, False, True):
        verdict = quarantine.died(Entry(STEP, "f", 0, "FILE", (7,), alone), "words")
    assert verdict.failure is not None and "quarantine.json" in verdict.failure[1]


def test_a_damaged_list_is_refused_with_the_next_step(tmp_path: Path):
    (tmp_path / "feeds" / "f").mkdir(parents=True)
    (tmp_path / "feeds" / "f" / "quarantine.json").write_text("[[1]]")
    with pytest.raises(ServerError, match=r"quarantine\.json is damaged: .* mend it"):
        Quarantine(config("f", state=tmp_path))
