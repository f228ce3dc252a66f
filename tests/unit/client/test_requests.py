"""A request is sent once, and again after each reconnection until it is answered."""

import pytest

from headrace.requests import (
    Requests,
    drain,
    flush_states,
    set_batch_size,
    set_target_probs,
    stats,
)
from headrace_proto.messages import Answered, Drain, Flush, Resize, Retarget, Stats


def part(*rows):
    return rows, [[0, 4, [len(rows)]]], b"block of %d" % rows[0]


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (drain(True), lambda session: Drain(session, 1, True)),
        (set_target_probs((0.25, 0.75)), lambda session: Retarget(session, 1, (0.25, 0.75))),
        (set_batch_size((8, 16)), lambda session: Resize(session, 1, (8, 16))),
        (stats(), lambda session: Stats(session, 1)),
    ],
    ids=["drain", "retarget", "resize", "stats"],
)
def test_a_request_is_resent_in_any_session_until_it_is_answered(request_, message, anew):
    requests = Requests()
    requests.ask(request_)
    assert requests.unsaid and requests.to_say(7) == [(message(7), [])]
    assert not requests.unsaid and requests.to_say(7) == []
    session = 8 if anew else 7
    requests.reopened()
    assert requests.unsaid and requests.answer_to(request_) is None
    assert requests.to_say(session) == [(message(session), [])]
    answer = Answered(session, 1, [[0, 5]])
    requests.receive(answer)
    assert requests.answer_to(request_) == answer
    requests.reopened()
    assert not requests.unsaid and requests.to_say(9) == []


def test_another_request_of_the_kind_takes_the_place_of_the_one_before():
    requests = Requests()
    first, second = set_target_probs((0.5, 0.5)), set_target_probs((0.1, 0.9))
    requests.ask(first)
    requests.to_say(7)
    requests.ask(second)
    assert requests.to_say(7) == [(Retarget(7, 2, (0.1, 0.9)), [])]
    requests.receive(Answered(7, 1, [[0, 3]]))  # to the first one
    assert requests.answer_to(second) is None
    requests.receive(Answered(7, 2, [[0, 9]]))
    assert requests.answer_to(second).value == [[0, 9]]
    requests.ask(first)
    assert requests.answer_to(first) is None, "the answer of before stands no more"


def test_a_flush_is_several_messages_with_a_block_each_and_one_answer():
    requests, flush = Requests(), flush_states(77, [part(0, 2), part(3)])
    requests.ask(flush)
    assert requests.to_say(7) == [
        (Flush(7, 1, 77, (0, 2), [[0, 4, [2]]], True), [b"block of 0"]),
        (Flush(7, 1, 77, (3,), [[0, 4, [1]]], False), [b"block of 3"]),
    ]
    requests.receive(Answered(7, 1))
    assert requests.answer_to(flush) == Answered(7, 1)


ENDED = Answered(7, 0, [], "server", "the feed has ended")
MADE = Answered(7, 1, [], "server", "all batches of the feed were made before")
REFUSED = Answered(7, 1, [[2, 0]], "server", "it has three classes")
TAKEN = Answered(7, 1, [[0, 5], [3, 7]])


@pytest.mark.parametrize(
    ("answers", "since", "fault"),
    [
        ([MADE, TAKEN, ENDED], TAKEN.value, ""),
        ([ENDED, REFUSED, TAKEN], [[2, 0], *TAKEN.value], REFUSED.text),
        ([ENDED, MADE], [], MADE.text),
        ([ENDED, ENDED], [], ENDED.text),
    ],
)
def test_owners_that_make_no_more_do_not_count_while_others_do(answers, since, fault):
    joined = set_target_probs((0.5, 0.5)).joined(answers)
    assert (joined.value, joined.text, bool(joined.code)) == (since, fault, bool(fault))


def test_counts_of_all_owners_are_added_and_an_owner_that_has_ended_counts_nothing():
    one = Answered(7, 1, {"ready": 3, "in_flight": 2})
    other = Answered(8, 1, {"ready": 4, "incomplete": 5, "in_flight": 1})
    total = stats().joined([one, other, stats().at_end])
    assert total.value == {"ready": 7, "incomplete": 5, "in_flight": 3}
