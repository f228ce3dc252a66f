"""The choice of hand-outs by an operator's options."""

from __future__ import annotations

import pytest

from headrace_server.flight.choice import batch_named, handed_to, steps_named
from headrace_server.flight.hand_outs import HandOut, RecordedTrainer
from headrace_server.flight.rows import BatchId

ONE = RecordedTrainer(((1, 1),), "node:10", 0, 2)
TWO = RecordedTrainer(((1, 2),), "node:11", 1, 2)
LATER = RecordedTrainer(((2, 1),), "node:12", 0, 2)


def leases() -> list[HandOut]:
    given = [(ONE, 0, 1), (TWO, 1, 1), (ONE, 2, 2), (LATER, 0, 1), (LATER, 1, 2)]
    return [
        HandOut(token, BatchId(trainer.sessions[0][0], 0, number), 8, trainer, step, 0.0)
        for token, (trainer, number, step) in enumerate(given)
    ]


def test_a_batch_is_that_of_the_last_life_unless_one_is_named() -> None:
    assert batch_named("--batch", "0:1", leases()) == BatchId(2, 0, 1)
    assert batch_named("--batch", "1/0:1", leases()) == BatchId(1, 0, 1)
    assert batch_named("--batch", "0:2", leases()) == BatchId(1, 0, 2)


@pytest.mark.parametrize("text", ["", "1", "0:x", "-1:2", "1/2", "a/0:1", "0:1 "])
def test_what_is_no_batch_is_refused_by_the_argument(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--batch='.*' is not PARTITION:NUMBER"):
        batch_named("--batch", text, leases())


def test_a_batch_that_was_never_handed_out_is_refused() -> None:
    with pytest.raises(ValueError, match="no record tells of a hand-out"):
        batch_named("--batch", "7:1", leases())


def test_steps_are_a_range_or_one() -> None:
    assert steps_named("--steps", "3-5") == range(3, 6)
    assert steps_named("--steps", "3") == range(3, 4)
    for text in ("0-2", "5-3", "a", "1-", "-3"):
        with pytest.raises(ValueError, match="--steps="):
            steps_named("--steps", text)


def tokens(text: str, steps: range | None = None) -> list[int]:
    return [lease.token for lease in handed_to(text, steps, leases())]


def test_a_trainer_is_a_session_a_rank_or_a_host() -> None:
    assert tokens("1") == [3, 4]
    assert tokens("1/1") == [0, 2]
    assert tokens("2") == [1]
    assert tokens("rank:0") == [0, 2, 3, 4]
    assert tokens("node") == [0, 1, 2, 3, 4]
    assert tokens("node:11") == [1]
    assert tokens("1", range(2, 9)) == [4]


@pytest.mark.parametrize("text", ["rank:-1", ""])
def test_trainers_without_a_rank_or_a_host_are_not_named_by_that(text: str) -> None:
    nameless = HandOut(1, BatchId(1, 0, 0), 8, RecordedTrainer(((1, 1),), "here", -1, 0), 1, 0.0)
    with pytest.raises(ValueError, match="is none that is recorded"):
        handed_to(text, None, [nameless])


def test_an_unknown_trainer_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"'3/1'.*there are 1/1 \(node:10, rank 0 of 2\)"):
        tokens("3/1")


def test_steps_of_several_sessions_are_refused_with_their_names() -> None:
    with pytest.raises(ValueError, match=r"1/1 .*2/1 .*name one as LIFE/SESSION"):
        tokens("rank:0", range(1, 3))
