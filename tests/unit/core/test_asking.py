"""A question is answered once, when all parties have answered it or no answer can come."""

from __future__ import annotations

from math import inf

from headrace_server.core.asking import Asking

Question = Asking[int, str, str]


def done(asking: Question, now: float = -inf) -> list[tuple[str, dict[int, str], list[int]]]:
    return [(one.then, one.answers, one.waiting) for one in asking.take_done(now)]


def test_a_question_is_done_once_when_the_last_has_answered():
    asking = Question()
    number = asking.ask(range(2), "who asked")
    asking.answer(number, 1, "one")
    assert done(asking) == []
    asking.answer(number, 0, "zero")
    assert done(asking) == [("who asked", {1: "one", 0: "zero"}, [])]
    assert done(asking) == []


def test_the_first_answer_of_each_counts_and_of_nobody_else():
    asking = Question()
    number = asking.ask(range(2), "")
    for who, answer in ((0, "first"), (0, "again"), (5, "a stranger")):
        asking.answer(number, who, answer)
    asking.answer(number + 1, 1, "of no question")
    asking.answer(number, 1, "last")
    assert done(asking) == [("", {0: "first", 1: "last"}, [])]
    asking.answer(number, 1, "too late")
    assert done(asking) == []


def test_a_question_that_is_overdue_is_done_with_what_is_known():
    asking = Question()
    first, last = asking.ask(range(2), "first", 5.0), asking.ask(range(2), "last", 6.0)
    asking.answer(first, 1, "one")
    asking.answer(last, 0, "zero")
    assert done(asking, 4.9) == []
    assert done(asking, 5.0) == [("first", {1: "one"}, [0])]
    assert done(asking, 6.0) == [("last", {0: "zero"}, [1])]


def test_all_are_given_up_at_the_end_of_time():
    asking = Question()
    asking.ask(range(1), "a")
    asking.ask(range(1), "b", 5.0)
    assert done(asking, inf) == [("a", {}, [0]), ("b", {}, [0])] and asking.open == {}


def test_the_next_life_of_one_is_asked_what_the_last_has_not_answered():
    asking = Question()
    first, last = asking.ask(range(2), "first"), asking.ask(range(2), "last")
    asking.answer(first, 1, "")
    assert asking.unanswered(1) == [(last, "last")]
    assert asking.unanswered(0) == [(first, "first"), (last, "last")]


def test_a_question_to_nobody_is_done_at_once():
    asking = Question()
    asking.ask((), "nobody")
    assert done(asking) == [("nobody", {}, [])]
