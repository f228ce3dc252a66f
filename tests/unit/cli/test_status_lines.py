"""A status as lines: the figures are there, in columns, and nothing in them moves a cursor."""

from __future__ import annotations

from headrace_server.cli.status_lines import lines

from ..server.statuses import feed, server, trainer

RATES = {"read": 812.4, "made": 1204.0, "rows": 1199.0, "bytes": 9.5e6, "stall": 0.41}
VERDICT = {"level": "bad", "where": "workers", "text": "Trainers wait 41 % of their time."}


def text(color: bool = False, **feeds: object) -> str:
    return "\n".join(lines(server(**feeds), color))


def test_a_feed_is_shown_with_its_verdict_and_the_rates_of_its_flow():
    told = text(speech=feed(rates=RATES, verdict=VERDICT))
    assert "speech  open  [bad] Trainers wait 41 % of their time." in told
    assert (
        "  npz ─ 812/s ─► shuffle ─► batch ─ 1,204/s ─► slab ─ 9.1 MiB/s ─► leases ─► "
        "trainers ─ 1,199/s ─► done"
    ) in told
    assert "batches: 3 done, 1 ready, 2 leased, 0 saving" in told
    refused = "2 connections or messages refused"
    assert told.startswith(f"serving  up 1 min  headrace 0.1.0  {refused}  tcp://")


def test_trainers_are_columns_with_a_bar_of_the_time_that_they_wait():
    one = trainer(1, rates={"stall": 0.4, "rows": 402.0}, batches=1024, committed=1022)
    two = trainer(12, host="", rank=3, rates={"stall": None, "rows": None})
    told = text(a=feed(trainers=[one, two], trainers_more=4)).splitlines()
    at = next(i for i, line in enumerate(told) if line.startswith("  trainer"))
    assert told[at + 1].split() == [
        *("1", "there:1", "████░░░░░░", "40", "%", "402", "2", "1,024", "1,022", "0.5", "s")
    ]
    assert told[at + 2].split()[:4] == ["12", "rank", "3", "unknown"]
    assert told[at + 3] == "  and 4 more trainers"
    widths = {line.index("rows/s") + len("rows/s") for line in told if "rows/s" in line}
    assert {told[at + 1].index("402") + 3} == widths


def test_a_trainer_can_not_begin_a_line_of_its_own():
    named = {"name": "mine\n  and 9 more trainers", "host": "there\nfailed"}
    seen = server(a=feed(trainers=[trainer(**named)]))
    assert len(lines(seen)) == len("\n".join(lines(seen)).split("\n"))


def test_hostile_texts_are_shown_as_what_they_are():
    hostile = "\x1b]0;title\x07"
    verdict = {**VERDICT, "text": f"The feed has failed: {hostile}"}
    seen = server(**{hostile: feed(trainers=[trainer(host=hostile)], verdict=verdict)})
    seen |= {"why": hostile, "events": [{"at": 0.0, "kind": "worker died", "text": hostile}]}
    assert "\x1b" not in "\n".join(lines(seen)) and "\x07" not in "\n".join(lines(seen, color=True))
