"""A feed of segments over a real socket: commits, waits and flushes."""

import contextlib

import numpy as np
import pytest

from headrace import (
    Cancelled,
    DeadlineExceeded,
    ProtocolError,
    StaleLease,
    StateError,
)
from tests.waiting import waits_end_after

from .serving import LSTM, TAG, columns_of, properties, served

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


def test_a_hostile_batch_goes_back_and_is_a_protocol_error():
    none = np.zeros(0, np.int32)
    bad = columns_of(KEPT, starts=none, state_of=none)
    with served(KEPT, [bad, *batches(KEPT, 1)]) as (server, feed):
        with pytest.raises(ProtocolError, match="goes on in lane 0"):
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


def test_the_next_batch_is_refused_to_who_never_saves():
    with served(KEPT, batches(KEPT, 2)) as (_server, feed):
        next(feed)
        owed = r"has not saved states 'lstm', 'tag' of 2"
        with waits_end_after(0.3), pytest.raises(DeadlineExceeded, match=owed):
            next(feed)


# tf.data


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
