"""Feeds, runs and interruptions, drawn at random and judged by the reference and the laws.

The draws are the same in each run.  ``make combinations`` draws others.
"""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import pytest

from tests.combinations.__main__ import run
from tests.combinations.judge import Draw, Feed, Place, Run, check
from tests.combinations.laws import Case
from tests.combinations.runs import groups
from tests.combinations.training import Taken

SEED = 20_261_129
_PARTS = 4
#: With these the module takes less than a minute on two processors.
_GROUPS = 2


@pytest.mark.parametrize("part", range(_PARTS))
def test_no_combination_of_feed_run_and_interruption_breaks_a_law(part: int) -> None:
    for place, draws in islice(groups(random.Random(f"{SEED} {part}")), _GROUPS):
        check(place, draws)


def test_copies_of_a_copy_have_keys_of_their_own() -> None:
    """The copies that two stages make of one example draw apart: make_keys_unique tells them so."""
    feed = (
        Feed(25)
        .weighted_resample(weights="w", overall_rate=1.5)
        .resample_at_rate(rates="w", seed=4)
        .with_origin()
        .batch_sequences_with_states(
            input_key="key",
            input_sequences=["x"],
            input_context=["n"],
            initial_states={"mark": 0},
            num_unroll=3,
            stride=2,
            batch_size=4,
            make_keys_unique=True,
        )
    )
    check(Place(), [Draw("two resamplings", feed, Run())])


def test_a_loop_over_an_epoch_goes_on_after_the_commit_of_all_that_its_trainer_can_get() -> None:
    """There is one example for each lane, so the loop ends amid the epoch with three in hand."""
    feed = (
        Feed(24)
        .repeat(n=2, across_batches=False)
        .batch_sequences_with_states(
            input_key="key",
            input_sequences=["x"],
            input_context=[],
            initial_states={},
            num_unroll=1,
            batch_size=3,
            capacity=3,
            order="lanes",
            allow_small_batch=False,
        )
    )
    check(Place(partitions=2), [Draw("lanes", feed, Run(hold=2))])


def test_a_failure_is_a_program_that_fails_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference is made wrong: it knows of no batch."""
    feed = Feed(12, "jsonl").shuffle(seed=3).batch(batch_size=3, dynamic_pad=True)
    place, draws = Place(partitions=2), [Draw("batch", feed, Run(world=2))]
    check(place, draws)
    monkeypatch.setattr("tests.reference._batched", lambda rows, given: iter(()))
    with pytest.raises(AssertionError, match="1 of 1 fail:\n\nbatch: content of batch 0") as raised:
        check(place, draws)
    program = tmp_path / "program.py"
    program.write_text(str(raised.value).partition("\n\n")[2].partition("\n\n")[2])
    assert len(program.read_text().splitlines()) < 15
    with pytest.raises(AssertionError, match="1 of 1 fail:\n\nbatch: content of batch 0"):
        run([str(program)])


def test_an_example_goes_on_with_another_trainer_when_its_own_has_parted() -> None:
    """Nothing is left after the parting: the other one had all that came."""
    feed = Feed(4).batch_sequences_with_states(
        input_key="key",
        input_sequences=["x"],
        input_context=[],
        initial_states={},
        num_unroll=1,
        batch_size=1,
        order="lanes",
    )
    case = Case(Draw("lanes", feed, Run()), 1)
    batches = [{**one, "@partition": 0, "@valid": [True]} for one in case.batches[0]]
    assert not batches[0]["@last"][0]
    taken = [Taken(min(at, 1), 0, one, 1, "done") for at, one in enumerate(batches)]
    assert not case.broken(Place(), Run(), [], others=taken)
    (fault,) = case.broken(Place(), Run(trainers=2), taken)
    assert "lane (1, 0, 0) has segment" in fault
    assert "after None" in fault
