"""Every trial at a small part of its size; planted faults show that the trials find them.

The full sizes are ``make fuzz``, ``make soak`` and ``make trials``.
"""

from __future__ import annotations

import inspect
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest

from headrace_proto import limits
from headrace_proto.messages import FROM_SERVER, FROM_TRAINER, Hello, Refused, Step
from headrace_server.core.lease import CommitVerdict, LeaseTable
from headrace_server.core.stored_state import Saved
from headrace_server.worker import outbox
from headrace_server.worker.partitions import Partitions
from tests.trials import events, flips, interleavings, messages, power
from tests.trials.bench import Bench, PlayedPartitions
from tests.trials.every import EVERY
from tests.trials.frame import NotHere, Report, Result, Setup, percentile, run, table, written
from tests.unit.changes import examples_of

#: Trials by the part of their full size that takes some seconds.
SHORT = {
    "events": 0.0005,
    "interleavings": 0.0005,
    "messages": 0.0005,
    "connections": 0.0003,
    "held": 0.1,
    "soak": 0.01,
    "kills": 0.001,
    "terms": 0.01,
    "flips": 0.01,
    "load": 0.02,
    "flood": 0.05,
    "hostile": 0.05,
    "recovery": 0.01,
    "suspend": 0.03,
}
#: The same, of those that mount file systems or make groups of processes.
OF_ROOT = {"power": 0.01, "disk": 0.05, "endless": 0.2, "shares": 0.01}


def short(name: str, scale: float, scratch: Path) -> Result:
    trial = EVERY[name]
    result = run(name, trial.goal, trial.run, Setup(1, scale, scratch))
    print(table([result]))
    return result


#: Methods that only the loop of a worker calls; the bench has no such loop.
OF_THE_LOOP = {
    "at_rest",
    "check_ahead",
    "end",
    "prepare",
    "reads_next",
    "rest",
    "turn",
    "work",
}


def test_the_partitions_of_a_bench_take_every_call_of_a_house() -> None:
    calls = {name for name in vars(Partitions) if not name.startswith("_")} - OF_THE_LOOP
    for name in calls:
        real, played = (inspect.signature(getattr(c, name)) for c in (Partitions, PlayedPartitions))
        assert list(played.parameters) == list(real.parameters), name


@pytest.mark.parametrize("name", SHORT)
def test_a_trial_in_short_sees_nothing_that_must_not_be(name: str, tmp_path: Path) -> None:
    result = short(name, SHORT[name], tmp_path)
    assert result.verdict in ("held", "missed"), result.notes
    assert sum(result.counts.values()) > 0


@pytest.mark.needs_root
@pytest.mark.parametrize("name", OF_ROOT)
def test_a_trial_that_needs_root_in_short_sees_nothing_that_must_not_be(
    name: str,
) -> None:
    """Files lie on the disk, since a host of the trials has shared memory of its own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        result = short(name, OF_ROOT[name], Path(scratch))
    if result.verdict == "not run":
        pytest.skip("; ".join(result.notes))
    assert result.verdict in ("held", "missed"), result.notes


def test_every_trial_has_a_short_form() -> None:
    assert EVERY.keys() == SHORT.keys() | OF_ROOT.keys()


# Planted faults


@pytest.fixture
def unfenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first commit counts, even if another trainer has the batch by now."""
    commit = LeaseTable.commit

    def no_fence(table: LeaseTable[Any], token: int, session: int) -> tuple[CommitVerdict, Any]:
        for lease in list(table.held()):
            if lease.token != token and lease.session != session:
                return commit(table, lease.token, lease.session)
        return commit(table, token, session)

    monkeypatch.setattr(LeaseTable, "commit", no_fence)


def test_random_histories_see_a_fence_that_is_missing(unfenced: None, tmp_path: Path) -> None:
    report = Report()
    events.run(Setup(1, 0.0005, tmp_path), report)
    kinds = {found.partition(",")[0] for found in report.broken}
    assert kinds == {"plain", "segments"}, report.broken


def test_interleavings_see_a_holder_that_is_not_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The token of a batch that went to another stays good."""
    grant, commit = LeaseTable.grant, LeaseTable.commit

    def noted(table: LeaseTable[Any], batch: Any, *more: Any) -> Any:
        lease = grant(table, batch, *more)
        granted[lease.token] = batch
        return lease

    def lenient(table: LeaseTable[Any], token: int, session: int) -> tuple[CommitVerdict, Any]:
        for lease in list(table.held()):
            if lease.token != token and lease.batch == granted.get(token):
                return commit(table, lease.token, lease.session)
        return commit(table, token, session)

    granted: dict[int, Any] = {}  # batches by token
    monkeypatch.setattr(LeaseTable, "grant", noted)
    monkeypatch.setattr(LeaseTable, "commit", lenient)
    report = Report()
    interleavings.explore("arrival", 0, 1, report, 2500)
    assert report.broken


def test_broken_messages_see_answers_that_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "_ANSWERS_PER_MESSAGE", 10**6)
    monkeypatch.setattr(outbox, "_FAULTS_PER_MESSAGE", 10**6)
    report = Report()
    messages.run(Setup(1, 0.001, tmp_path), report)
    assert any("needs a header of" in found for found in report.broken), report.broken


@pytest.mark.parametrize("way", ["sends on and on", "tells of many commits"])
def test_a_trainer_that_makes_more_work_than_it_may_is_told_so_and_is_heard_no_more(
    way: str, tmp_path: Path
) -> None:
    bench, trainer = Bench(tmp_path / "bench", durable=False), b"trainer"
    bench.say(trainer, [FROM_TRAINER.encode(Hello(limits.PROTOCOL, "t", "plain", b"nonce"))])
    (welcome,) = (FROM_SERVER.decode(header) for _, header in bench.heard())
    if way == "sends on and on":
        step = FROM_TRAINER.encode(Step(welcome.session, 0))
        bench.say(trainer, *([step] for _ in range(5000)))
    else:
        step = FROM_TRAINER.encode(Step(welcome.session, 0, tuple(range(1, 4001))))
        for _ in range(2):
            bench.say(trainer, [step])
            assert bench.hears(trainer)
        bench.say(trainer, [step])
    refused = [m for _, h in bench.heard() if isinstance(m := FROM_SERVER.decode(h), Refused)]
    assert [told.code for told in refused] == ["limit"] and not bench.hears(trainer)
    bench.close()


def test_a_cut_of_power_that_lost_an_ack_or_tore_a_change_is_seen() -> None:
    def left(n: int, *, tokens: int | None = None, state: int | None = None) -> Saved:
        count = n if tokens is None else tokens
        of = n if state is None else state
        examples = examples_of(power.example(k, of) for k in range(n, n + 20))
        return Saved({"n": b"%d" % n}, examples, {}, [], list(range(count + 1)))

    assert power.fault_of(left(9), 9, "power") == power.fault_of(left(10), 9, "power") == ""
    assert power.fault_of(left(8), 9, "process") == ""
    assert "9 was told to be committed, and 8" in power.fault_of(left(8), 9, "power")
    assert "tokens up to" in power.fault_of(left(9, tokens=8), 9, "process")
    assert "states are not those" in power.fault_of(left(9, state=8), 9, "process")
    stray = Saved({}, examples_of([power.example(0, 0)]), {}, [], [])
    assert "examples are not those" in power.fault_of(stray, -1, "process")


def test_a_store_without_checksums_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("google_crc32c.value", lambda data: 0)
    monkeypatch.setattr("google_crc32c.extend", lambda crc, data: 0)
    report = Report()
    flips.stores("closed journal", Setup(1, 0.1, tmp_path), report)
    assert "closed journal: a state that never was" in report.broken


def test_damage_is_always_a_change_of_the_same_length_or_zeros() -> None:
    chance = random.Random(1)
    data = chance.randbytes(5000)
    for _ in range(200):
        assert len(flips.damaged(data, chance)) == len(data)


# The frame


def test_a_result_says_what_was_counted_passed_and_seen(tmp_path: Path) -> None:
    def trial(setup: Setup, report: Report) -> None:
        report.count("deeds", setup.sized(1000))
        report.at_most("wait s", 2.0, 1.0)
        if setup.seed == 2:
            report.wrong("it was lost")

    missed = run("some", "goal", trial, Setup(1, 0.5, tmp_path))
    assert missed.verdict == "missed" and missed.sound
    assert missed.counts == {"deeds": 500} and missed.figures == {"wait s": 2.0}
    broken = run("some", "goal", trial, Setup(2, 0.5, tmp_path))
    assert broken.verdict == "broken" and not broken.sound
    assert broken.notes == ["it was lost", "wait s 2.00, the limit is 1"]
    assert "| some | 2 |" in table([broken]) and "deeds 500" in table([broken])
    assert json.loads(written(broken))["notes"] == broken.notes


def test_a_trial_that_can_not_be_run_says_why(tmp_path: Path) -> None:
    def trial(setup: Setup, report: Report) -> None:
        raise NotHere("no mount")

    result = run("some", "goal", trial, Setup(1, 1.0, tmp_path))
    assert (result.verdict, result.notes) == ("not run", ["no mount"])


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(n) for n in range(1, 101)]
    assert percentile(values, 0.99) == 99.0 and percentile(values, 0.5) == 50.0
    assert percentile([7.0], 0.99) == 7.0 and percentile([], 0.5) == 0.0
