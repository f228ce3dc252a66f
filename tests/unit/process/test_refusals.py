"""All refusals are counted, and a readable number of them is logged."""

from __future__ import annotations

import logging

import pytest

from headrace_server.process import refusals
from headrace_server.process.refusals import Refusals
from tests.footprint import entries


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "headrace.trainers")
    return caplog


def test_a_peer_is_logged_once_and_then_counted(log: pytest.LogCaptureFixture):
    told = Refusals()
    for k in range(50):
        told.add("unknown_key", "10.0.0.1", "refused one", float(k) / 10)
    assert log.messages == ["refused one"]
    told.tick(30)
    assert len(log.messages) == 1
    told.tick(61)
    assert log.messages[1:] == ["49 more were refused (unknown_key)"]
    told.tick(200)
    assert len(log.messages) == 2
    assert told.counts == {"unknown_key": 50}


def test_a_storm_from_many_peers_makes_few_lines_and_little_memory(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(refusals, "_REMEMBERED", 30)
    told = Refusals()
    for minute in range(3):
        for k in range(1000):
            told.add("a", f"{minute} {k}", "line", 60.0 * minute)
    assert told.counts["a"] == 3000
    assert log.messages.count("line") == 3 * 20
    assert entries(told) <= 30 + 2, "the peers, a count of all and one of those not logged"
