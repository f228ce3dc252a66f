"""The chronicle has the last events, the newest first, and is bounded in every way."""

from __future__ import annotations

import time

from headrace_server.supervisor.chronicle import Chronicle


def test_the_newest_event_is_told_first_with_its_time():
    chronicle = Chronicle()
    before = time.time()
    chronicle.note("worker died", "one")
    chronicle.note("feed failed", "two")
    told = chronicle.told()
    assert [(e["kind"], e["text"]) for e in told] == [
        ("feed failed", "two"),
        ("worker died", "one"),
    ]
    assert before <= told[1]["at"] <= told[0]["at"] <= time.time()


def test_the_oldest_go_and_long_texts_are_cut():
    chronicle = Chronicle()
    for n in range(60):
        chronicle.note("n", f"{n} " + "x" * 10_000)
    told = chronicle.told()
    assert len(told) == 50 and told[-1]["text"].startswith("10 ")
    assert all(len(event["text"]) == 4000 for event in told)
