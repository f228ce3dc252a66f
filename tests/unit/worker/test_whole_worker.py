"""A whole worker: real partitions and stores, and trainers that speak to it message by message."""

from __future__ import annotations

import shutil
import threading
import time

import numpy as np
import pytest

import headrace_server as hs
from headrace_proto import limits
from headrace_proto import log_messages as wire
from headrace_proto.errors import ServerError
from headrace_proto.messages import (
    Answered,
    Bye,
    Flush,
    Give,
    Handed,
    LetGo,
    Pulse,
    Renew,
    Save,
    Unknown,
)

from ...patience import PATIENCE_S, eventually
from .whole import FEED, Trainer, Worker


def numbers(count, **options):
    return hs.from_examples([{"x": n} for n in range(count)]).batch(2, **options)


@pytest.fixture
def directory(tmp_path):
    return tmp_path


def rows_of(worker, trainer):
    give, block = worker.receive(trainer.connection)
    while isinstance(give, Give) and not give.items:
        trainer.committed |= {*give.committed}
        give, block = worker.receive(trainer.connection)
    assert isinstance(give, Give), give
    trainer.committed |= {*give.committed}
    (item,) = give.items
    offset, nbytes, shape = item.columns[0]
    return item, np.frombuffer(block[offset : offset + nbytes], np.int64).reshape(shape).tolist()


def test_a_lost_message_makes_the_trainer_greet_again_and_gets_what_was_under_way(directory):
    with Worker(directory, numbers(8)) as worker:
        trainer = Trainer(worker, b"a")
        trainer.greet()
        trainer.step([(0, 0)])
        item, _ = rows_of(worker, trainer)
        trainer.said += 1  # it was lost
        trainer.beat()
        assert isinstance(trainer.hear(), Unknown)
        welcome = trainer.greet(gets=(1, 0, 0))
        assert welcome.resumed and welcome.session == trainer.session
        trainer.beat()
        again, _ = rows_of(worker, trainer)
        assert again.token == item.token  # it does not hold it: it was lost on the way


def test_no_feed_fails_for_want_of_a_run_directory_that_is_gone(directory):
    """The server was killed, and another start has removed what it left: its workers end."""
    run = directory / "run"
    run.mkdir()
    with Worker(run, numbers(8)) as worker:
        part = worker.owner._switchboard.feeds[FEED].partitions[0]
        eventually(lambda: part.done)  # else its own thread finds no directory
        shutil.rmtree(run)
        with pytest.raises(ServerError, match="no segment"):
            worker.owner._partitions.fail(part, ServerError("no segment"))
        assert part.feed.failure is None


def test_a_pause_has_trainers_let_go_and_ends_when_nothing_is_leased(directory):
    with Worker(directory, numbers(8)) as worker:
        trainer = Trainer(worker, b"a")
        trainer.greet()
        trainer.step([(0, 0)])
        item, _ = rows_of(worker, trainer)
        worker.pipe.order("pause", request=1)
        trainer.hear_all(LetGo)
        assert not [one for one in worker.pipe.reports if one[0] == "answer"]
        trainer.step(returned=(item.token,))
        worker.pipe.order("pause", request=2)
        trainer.beat()
        trainer.hear()
        answered = [values["request"] for kind, values in worker.pipe.reports if kind == "answer"]
        assert answered == [1, 2]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_bye_is_answered_so_what_comes_later_finds_what_it_held(directory, lost):
    """Also where a message of the trainer was lost, so that it was told to greet again."""
    with Worker(directory, numbers(6)) as worker:
        one = Trainer(worker, b"a")
        one.greet()
        one.step([(0, 0)])
        rows_of(worker, one)
        one.said += lost
        one.beat()
        one.say(Bye(one.session))
        assert one.hear_all(Unknown, Give).session == one.session
        two = Trainer(worker, b"b")
        assert two.greet().next == (0, 0, 0)
        assert two.greet().others == 0


def test_a_trainer_that_leaves_before_its_greeting_is_answered_holds_nothing(directory):
    """The next life waits for both trainers, of which the first leaves meanwhile."""
    with Worker(directory, numbers(6)) as worker:
        one, two = Trainer(worker, b"a"), Trainer(worker, b"b")
        one.greet()
        two.greet()
        one.step([(0, 0)])
        item, _ = rows_of(worker, one)
    with Worker(directory, numbers(6), life=1) as worker:
        one.worker = two.worker = worker
        held = Handed(item.token, 0, item.number, item.turn_epoch, item.turn_index, item.rows)
        hello = one.hello([held])
        worker.send(one.connection, hello)
        one.say(Bye(0))
        assert one.hear_all(Unknown).session == 0
        welcome = two.greet()
        assert welcome.next == (0, 0, 0) and welcome.others == 0


def test_a_greeting_that_waited_for_its_feed_is_answered_once(directory):
    """Its feed is open before the other feeds of the server: the trainer repeats it, and leaves."""
    with Worker(directory, numbers(6)) as worker:
        board = worker.owner._switchboard
        eventually(lambda: board._reported_open)
        one = Trainer(worker, b"a")
        hello = one.hello()
        board.feeds[FEED].opened = False
        worker.send(one.connection, hello)
        assert "opening" in one.hear().waiting
        board.feeds[FEED].opened = True
        worker.send(one.connection, hello)
        one.session = one.hear().session
        one.say(Bye(one.session))
        one.hear_all(Unknown)
        assert not board.reception._held, "what waits is answered when all feeds are open"


def test_the_status_has_what_each_trainer_holds_and_asks_for(directory):
    with Worker(directory, numbers(8)) as worker:
        trainer = Trainer(worker, b"a", host="there:7")
        trainer.greet()
        trainer.step([(0, 0)])
        rows_of(worker, trainer)
        trainer.say(Renew(trainer.session, trainer.said, blocked_s=1.23456, busy_s=7.0))
        trainer.hear_all(Pulse)
        worker.pipe.order("stats", request=5)
        answer = eventually(lambda: dict(worker.pipe.reports).get("answer"))
        feed = answer["feeds"][FEED]
        assert feed["state"] == "open" and feed["standing"]["leased"] == 1
        (told,) = feed["trainers"]
        assert (told["trainer"], told["host"], told["local"]) == (1, "there:7", False)
        assert (told["rank"], told["leases"], told["requests"]) == (-1, 1, 0)
        assert (told["batches"], told["wire_batches"], told["rows"]) == (1, 1, 2)
        assert (told["blocked_s"], told["busy_s"]) == (1.235, 7.0)
        assert told["awaited_s"] == 1.235 and trainer.nonce.hex() not in told["id"]
        assert "a batch is leased to trainer 1" in feed["waiting"]


def test_after_a_lost_message_nothing_counts_before_the_next_greeting(directory, caplog):
    """The trainer lists in it what it has; else each heartbeat until then would be a line."""
    with Worker(directory, numbers(8)) as worker:
        trainer = Trainer(worker, b"a")
        trainer.greet()
        for _ in range(3):
            trainer.say(Renew(trainer.session, 7))
            assert trainer.hear() == Unknown(trainer.session)
        assert caplog.text.count("of its messages were lost") == 1
        trainer.greet()
        trainer.step([(0, 0)])
        rows_of(worker, trainer)


BEGUN, GO_ON = threading.Event(), threading.Event()


def held_up(sequences, context):
    """Hold up the batch of the second segment until the test lets it go on."""
    if sequences["x"][0] == 1:
        BEGUN.set()
        GO_ON.wait(PATIENCE_S)
    return sequences


def test_states_are_flushed_after_a_commit_that_came_while_the_next_batch_was_made(directory):
    """1. The trainer has batch 0, and the worker makes batch 1, which takes long.
    2. The trainer commits batch 0, and flushes the states after it.  3. Batch 1 is made.
    """
    examples = hs.from_examples([{"key": "a", "x": range(3)}])
    states = {"initial_states": {"h": hs.zeros((), "int64")}, "state_placement": "trainer"}
    pipeline = examples.batch_sequences_with_states(
        "key", ["x"], [], num_unroll=1, batch_size=1, order="lanes", **states
    ).map_segments(held_up, schema={"x": hs.fixed("int64", (1,))})
    with Worker(directory, pipeline) as worker:
        trainer = Trainer(worker, b"a")
        trainer.greet()
        trainer.step([(0, 0), (0, 0)])
        assert BEGUN.wait(PATIENCE_S)
        token = trainer.hear_all(Give).items[0].token
        trainer.step(saves=(Save(token),))
        columns = [[0, 8, [1]]]
        trainer.say(Flush(trainer.session, 7, token, (0,), columns), np.array([5]).tobytes())
        trainer.beat()
        trainer.hear_all(Pulse, Give)  # the worker has all three messages
        GO_ON.set()
        answer = trainer.hear_all(Answered, Give)
        assert (answer.request, answer.text) == (7, "")


def live():
    states = {"initial_states": {"h": hs.zeros((), "int64")}}
    return hs.live("log", {"x": hs.sequence("int64")}).batch_sequences_with_states(
        None, ["x"], [], num_unroll=1, batch_size=1, **states
    )


def push(worker, kinds):
    """Push items of a new sequence, as a new producer."""
    hello = wire.Produce(limits.PROTOCOL, "test", "log", "actor", 1, partition=0, reopens=1)
    worker.send(b"producer", hello)
    assert worker.receive(b"producer")[0].places == 1
    sizes = {wire.OPEN: (0, 0), wire.STEPS: (1, 12), wire.ABORT: (0, 0)}
    items = [wire.Item(kind, 1, 0, sizes[kind][0], 0, sizes[kind][1]) for kind in kinds]
    column = b"".join(number.to_bytes(size, "little") for number, size in ((1, 4), (7, 8)))
    append = wire.Append(0, 1, tuple(number for item in items for number in item))
    worker.send(b"producer", append, b"s" * len(items), column * (wire.STEPS in kinds))


def test_a_worker_makes_a_batch_of_new_steps_before_it_rests(directory):
    """No event tells the worker of steps that it has stored at once: it looks before it rests."""
    worker = Worker(directory, live())
    feed, partitions = worker.owner._switchboard.feeds[FEED], worker.owner._partitions
    rest, wanted = partitions.rest, list[bool]()

    def noted(poll, at_most_s):
        wanted.append(feed.serves and not feed.desk.recovering and feed.desk.wanted)
        return rest(poll, at_most_s)

    partitions.rest = noted
    with worker:
        trainer = Trainer(worker, b"a")
        trainer.greet()
        trainer.step([(0, 0)])
        push(worker, [wire.OPEN, wire.STEPS])
        assert len(trainer.hear_all(Give).items) == 1
    assert wanted and not any(wanted)


def test_a_log_lets_go_of_a_sequence_that_no_batch_had(directory):
    """No commit stores that: without one the log would keep all that was aborted."""
    with Worker(directory, live()) as worker:
        trainer = Trainer(worker, b"a")
        trainer.greet()
        trainer.step([(0, 0)])
        push(worker, [wire.OPEN, wire.ABORT])
        ledger = worker.owner._partitions.logs.at("log", 0).ledger
        (view,) = ledger.views.values()
        eventually(lambda: view.seen == ledger.durable == 2)


class _LateLock:
    """A lock that the porter gets only once ``free`` is set; ``wanted``: it has asked for it."""

    def __init__(self):
        self._lock, self.wanted, self.free = threading.RLock(), threading.Event(), threading.Event()
        self.porter = None

    def acquire(self):
        if threading.current_thread().name == "headrace-porter":
            self.porter = threading.current_thread()
            self.wanted.set()
            self.free.wait(PATIENCE_S)
        self._lock.acquire()

    def release(self):
        self._lock.release()

    def __enter__(self):
        self.acquire()

    def __exit__(self, *error):
        self.release()


def test_a_porter_that_comes_after_the_last_step_leaves_the_end_to_the_worker(directory):
    """It would end the process while the worker still says goodbye to its trainers.

    1. A step takes long, so the porter wants the lock.  2. The step ends, and the worker gets the
    lock first: an order to stop is there.  3. The porter gets the lock, and no step is under way.
    """

    def slow(row):
        time.sleep(0.05)
        return row

    lock = _LateLock()
    worker = Worker(directory, hs.from_examples([{"x": 1}] * 6).map(slow).batch(2))
    worker.owner._lock = lock
    with worker:
        trainer = Trainer(worker, b"a")
        trainer.greet()
        trainer.step([(0, 0)])
        assert lock.wanted.wait(PATIENCE_S)
        rows_of(worker, trainer)
        worker.pipe.order("stop")
        worker.join()
        lock.free.set()
        lock.porter.join(PATIENCE_S)
        assert not lock.porter.is_alive() and not worker.owner.abandoned
