"""A feed of segments over a real socket: commits, waits and flushes."""

import contextlib
import gc
import threading

import numpy as np
import pytest

import headrace
from headrace import (
    Cancelled,
    DeadlineExceeded,
    ProtocolError,
    StaleLease,
    StateError,
)
from tests.patience import PATIENCE_S
from tests.waiting import waits_end_after

from .serving import LSTM, TAG, Serving, columns_of, properties, served

ONE = properties()
KEPT = properties((LSTM, TAG), "trainer", "lanes")
VALUE = np.ones((2, 3), np.float32)


def batches(told, count):
    return [columns_of(told, sequence=i, count=count + 1) for i in range(count)]


def save(batch, value=VALUE):
    batch.save_state("lstm", value)
    with contextlib.suppress(KeyError):  # without that state
        batch.state("tag")
        batch.save_state("tag", [b"x", b"yy"])


def test_large_states_go_out_without_a_copy_and_arrive_as_they_were_saved():
    told = properties((["lstm", "float32", [50_000]],))
    with served(told, batches(told, 6)) as (server, feed):
        value = np.empty((2, 50_000), np.float32)
        for number, batch in enumerate(feed):
            value[:] = number
            batch.save_state("lstm", value)
        feed.close()
        got = [set(server.saved[t]["lstm"].ravel().tolist()) for t in range(1, 7)]
        assert got == [{0}, {1}, {2}, {3}, {4}, {5}]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda t: {"stale": (t,)}, StaleLease),
        (lambda t: {"faults": [[t, "cancelled", "the feed was drained"]]}, Cancelled),
        (lambda t: {"faults": [[t, "state", "it is saved already"]]}, StateError),
    ],
)
def test_a_refused_save_is_raised_once_and_the_iteration_continues(answer, kind):
    told = batches(ONE, 3)
    only_first = lambda token: answer(1) if token == 1 else {"committed": (token,)}  # noqa: E731
    with served(ONE, told, answer=only_first) as (_server, feed):
        refused = []
        save(next(feed))
        while True:
            try:
                batch = next(feed)
            except StopIteration:
                break
            except kind as error:
                refused.append(error)
                continue
            save(batch)
        feed.close()
        assert len(refused) == 1


def test_an_error_that_no_step_raised_is_raised_by_close():
    with served(ONE, batches(ONE, 1), answer=lambda t: {"stale": (t,)}) as (_server, feed):
        save(next(feed))
        with pytest.raises(StaleLease, match="after its lease had ended"):
            feed.close()


@pytest.mark.parametrize("faults", [7, [7], [[1]], [["1", "state", "x"]], [[1, "state", 7]]])
def test_faults_that_can_not_be_are_a_protocol_error(faults):
    with served(ONE, batches(ONE, 1), answer=lambda t: {"faults": faults}) as (_server, feed):
        save(next(feed))
        with pytest.raises(ProtocolError, match=r"commits? (is|are)"):
            next(feed)


def test_the_error_of_a_deadline_lists_the_states_that_this_trainer_has_to_save():
    with served(ONE, batches(ONE, 1)) as (_server, feed):
        next(feed)
        owed = r"has not saved state 'lstm' of 2 segments \(00"
        with waits_end_after(0.3), pytest.raises(DeadlineExceeded, match=owed):
            next(feed)


def test_a_hostile_batch_goes_back_and_is_a_protocol_error():
    bad = columns_of(KEPT, lane=np.array([1, 1]))
    with served(KEPT, [bad, *batches(KEPT, 1)]) as (server, feed):
        with pytest.raises(ProtocolError, match="two rows in one lane"):
            next(feed)
        save(next(feed))
        feed.close()
        server.wait_for(lambda: server.said_bye)
        assert server.returned == [1] and list(server.saved) == [2]


# States that stay with the trainer


def test_states_that_stay_are_not_sent_until_the_feed_is_left():
    with served(KEPT, batches(KEPT, 3)) as (server, feed):
        with feed:
            for number, batch in enumerate(feed):
                assert batch.state("lstm")[0, 0] == number
                save(batch, batch.state("lstm") + 1)
        server.wait_for(lambda: server.said_bye)
        assert server.saved == {1: None, 2: None, 3: None}
        ((flush, states),) = server.flushes
        assert (flush.token, flush.rows, flush.more) == (3, (0, 1), False)
        assert states["lstm"].tolist() == [[3] * 3] * 2 and states["tag"].tolist() == [b"x", b"yy"]


def test_saved_states_are_flushed_when_an_exception_leaves_and_do_not_hide_it():
    with served(KEPT, batches(KEPT, 3)) as (server, feed):
        save(next(feed))
        next(feed)
        with pytest.raises(RuntimeError, match="mine"), feed:
            raise RuntimeError("mine")
        server.wait_for(lambda: server.said_bye)
        assert [flush.token for flush, _ in server.flushes] == [1] and server.returned == [2]


def test_states_that_the_server_does_not_take_are_not_handed_over_again():
    with served(KEPT, batches(KEPT, 2)) as (server, feed):
        save(next(feed))
        server.flush_code = "stale"
        with pytest.raises(headrace.StaleLease):
            feed.flush_states()
        server.flush_code = ""
        feed.flush_states()
        assert [flush.token for flush, _ in server.flushes] == [1]
        batch = next(feed)  # it was prefetched, and goes on from what was saved
        assert batch.state("lstm").tolist() == VALUE.tolist()
        save(batch)
        feed.flush_states()
        assert [flush.token for flush, _ in server.flushes] == [1, 2]


def test_the_next_batch_waits_until_another_thread_saves_the_one_before():
    with served(KEPT, batches(KEPT, 2)) as (_server, feed):
        first = next(feed)
        told = []
        took = threading.Thread(target=lambda: told.append(next(feed)))
        took.start()
        save(first)
        took.join(PATIENCE_S)
        assert told[0].state("lstm").tolist() == VALUE.tolist()
        save(told[0])


def test_the_next_batch_is_refused_to_who_never_saves():
    with served(KEPT, batches(KEPT, 2)) as (_server, feed):
        next(feed)
        owed = r"has not saved states 'lstm', 'tag' of 2"
        with waits_end_after(0.3), pytest.raises(DeadlineExceeded, match=owed):
            next(feed)


def test_a_feed_that_is_forgotten_with_a_batch_in_hand_leaves():
    server = Serving(ONE, batches(ONE, 2))
    server.start()
    feed = headrace.connect(server.address)
    assert next(feed).rows == 2
    del feed
    gc.collect()
    server.wait_for(lambda: server.said_bye)
    server.stop()


# tf.data


@pytest.mark.tf
def test_a_dataset_of_segments_is_trained_in_a_graph_and_saved_by_token():
    tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")
    with served(ONE, batches(ONE, 4), framework="tf") as (server, feed):
        dataset = feed.as_dataset()
        spec = dataset.element_spec
        assert spec["sequences"]["x"] == tf.TensorSpec((None, 2), tf.float32, "x")
        assert spec["token"].shape == () and spec["key"].dtype == tf.string

        @tf.function
        def step(batch):
            def saved(token, value):
                feed.save_states(token, {"lstm": value})
                return token

            return tf.py_function(saved, [batch["token"], batch["state"]["lstm"] + 1.0], tf.int64)

        seen = []
        for batch in dataset:
            seen.append(batch["key"].numpy()[0])
            assert batch["first"].numpy().tolist() == [len(seen) == 1] * 2
            step(batch)
        assert seen[:2] == [b"00000_of_00005:k0", b"00001_of_00005:k0"] and len(seen) == 4
        assert server.saved[4]["lstm"].tolist() == VALUE.tolist()


def test_a_dataset_is_refused_where_it_could_not_work():
    with served(KEPT, batches(KEPT, 1)) as (_server, feed):
        with pytest.raises(ValueError, match="states of this feed stay with the trainer"):
            feed.as_dataset()
    with served(ONE, batches(ONE, 1)) as (_server, feed):
        with pytest.raises(ValueError, match='needs framework="tf"'):
            feed.as_dataset()
        with pytest.raises(TypeError, match="facts=None is not a list of names"):
            feed.as_dataset(None)
        with pytest.raises(TypeError, match="tokens='no' is not True or False"):
            feed.as_dataset(tokens="no")
        with pytest.raises(ValueError, match=r"facts=\['length'\]"):
            feed.as_dataset(["length"])
