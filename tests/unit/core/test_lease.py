"""A batch is in one hand at a time, is settled once, and only its last holder can settle it."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace_server.core.dispatch_effects import Batch
from headrace_server.core.lease import CommitVerdict, LeaseTable
from headrace_server.core.transitions import IllegalEvent
from tests.examples import some

TTL = 10.0


def table(term=0):
    return LeaseTable(TTL, term)


def commit(t, token, session, code=""):
    """A commit that is stored, or refused, at once: the verdict and the batch."""
    verdict, lease = t.commit(token, session)
    if lease is None:
        return verdict, None
    t.stored(lease, code, "why")
    return verdict, lease.batch


def test_a_commit_counts_once_and_is_answered_the_same_when_it_comes_again():
    t = table()
    token = t.grant("a", 1, 1, 0.0).token
    assert commit(t, token, 1) == (CommitVerdict.COMMITTED, "a")
    assert commit(t, token, 1) == (CommitVerdict.DUPLICATE, None) and t.fault(token) is None
    assert commit(t, token, 2) == (CommitVerdict.DUPLICATE, None)


def test_a_commit_that_could_not_be_stored_is_answered_by_that_when_it_comes_again():
    t = table()
    token = t.grant("a", 1, 1, 0.0).token
    assert commit(t, token, 1, "state") == (CommitVerdict.COMMITTED, "a")
    assert commit(t, token, 1) == (CommitVerdict.DUPLICATE, None)
    assert t.fault(token) == (token, "state", "why")


def test_a_repeated_commit_is_answered_with_the_one_that_is_being_stored():
    t = table()
    token = t.grant("a", 1, 1, 0.0).token
    _, lease = t.commit(token, 1)
    assert t.commit(token, 1) == (CommitVerdict.WAITING, None) and lease.asked == ()
    for _ in range(2):  # it may send that again and again
        assert t.commit(token, 2) == (CommitVerdict.WAITING, None) and lease.asked == (2,)
    assert t.unstored == {1: 1} and 1 not in t.by_session
    t.stored(lease)
    assert t.unstored == {}
    assert t.commit(token, 2) == (CommitVerdict.DUPLICATE, None)


def test_an_illegal_event_changes_nothing_and_its_error_has_the_history_of_the_batch():
    t = table()
    first = t.grant("a", 1, 1, 2.0)
    t.take_back(first, "expired")
    second = t.grant("a", 2, 4, 12.0)
    history = (
        r"batch a {}: token 1 of trainer 1 from 2 s on: expired; "
        r"token 2 was granted to trainer 2 at 12 s as delivery 4, and is {}"
    )
    with pytest.raises(IllegalEvent, match=history.format("is leased already", "held")):
        t.grant("a", 3, 1, 13.0)
    with pytest.raises(IllegalEvent, match=history.format("is leased", "held")):
        t.void("a")
    with pytest.raises(IllegalEvent, match="has no commit that is being stored"):
        t.stored(second)
    assert list(t.held()) == [second] and t.unstored == {}
    t.commit(second.token, 2)
    with pytest.raises(IllegalEvent, match=history.format("is in nobody's hands", "saving")):
        t.take_back(second)
    with pytest.raises(IllegalEvent, match="token 2 is known already"):
        t.admit(second.token, "a", 1, 13.0)
    for _ in range(100):
        last = t.grant("b", 1, 1, 0.0)
        t.take_back(last, "expired")
    with pytest.raises(IllegalEvent) as caught:
        t.take_back(last)
    assert str(caught.value).count("expired") == 8, "the history is bounded"


def test_a_commit_after_the_lease_has_ended_counts_while_nobody_got_the_batch():
    t = table()
    lease = t.grant("a", 1, 1, 0.0)
    assert t.expired(TTL) == [lease] and t.take_back(lease) == "a"
    assert commit(t, lease.token, 1) == (CommitVerdict.COMMITTED, "a")
    assert commit(t, lease.token, 1) == (CommitVerdict.DUPLICATE, None)


def test_a_commit_is_stale_once_the_batch_went_to_another():
    t = table()
    first = t.grant("a", 1, 1, 0.0)
    t.take_back(first)
    second = t.grant("a", 2, 1, 0.0)
    assert second.token > first.token
    assert commit(t, first.token, 1) == (CommitVerdict.STALE, None)
    assert commit(t, second.token, 2) == (CommitVerdict.COMMITTED, "a")
    assert commit(t, first.token, 1) == (CommitVerdict.STALE, None)


def test_nobody_commits_for_another_while_the_lease_stands():
    t = table()
    token = t.grant("a", 1, 1, 0.0).token
    assert commit(t, token, 2) == (CommitVerdict.STALE, None)
    assert commit(t, token, 1) == (CommitVerdict.COMMITTED, "a")


def test_a_token_that_never_was_is_stale():
    assert commit(table(), 7, 1) == (CommitVerdict.STALE, None)


def test_a_batch_is_never_leased_twice_at_once_and_the_attempt_changes_nothing():
    t = table()
    lease = t.grant("a", 1, 1, 0.0)
    with pytest.raises(ValueError, match="batch a is leased already"):
        t.grant("a", 2, 1, 0.0)
    assert t.of_session(1) == [lease] and t.of_session(2) == []
    assert t.grant("b", 2, 1, 0.0).token == lease.token + 1


def test_a_trainer_that_is_back_takes_up_what_nobody_got_meanwhile():
    t = table()
    kept, lost = t.grant("a", 1, 1, 0.0), t.grant("b", 1, 2, 0.0)
    t.take_back(kept), t.take_back(lost)
    t.grant("b", 2, 1, 0.0)
    assert t.adopt(kept.token, 3, 50.0) == "a"
    assert t.adopt(lost.token, 3, 50.0) is None
    assert t.holds(3, kept.token) and not t.holds(1, kept.token)
    assert len(t.by_session[3]) == 1 and [x.deadline for x in t.of_session(3)] == [50.0 + TTL]
    with pytest.raises(ValueError, match="is leased already"):
        t.grant("a", 2, 2, 50.0)
    assert commit(t, kept.token, 1) == (CommitVerdict.STALE, None)
    assert commit(t, kept.token, 3) == (CommitVerdict.COMMITTED, "a")


def test_an_error_names_a_batch_by_number_and_partition_and_not_by_its_contents():
    t = table()
    batch = Batch(3, 7, 2, body="its bytes")
    t.grant(batch, 1, 1, 0.0)
    with pytest.raises(IllegalEvent, match="batch 7 of partition 3 is leased already") as raised:
        t.grant(batch, 2, 1, 0.0)
    assert "its bytes" not in str(raised.value)


def test_a_batch_that_was_made_nobodys_can_not_be_committed_by_its_last_holder():
    t = table()
    lease = t.grant("a", 1, 1, 0.0)
    with pytest.raises(ValueError, match="batch a is leased"):
        t.void("a")
    assert t.holds(1, lease.token)
    t.take_back(lease)
    t.void("a")
    assert (
        commit(t, lease.token, 1) == (CommitVerdict.STALE, None)
        and t.adopt(lease.token, 1, 0) is None
    )
    assert t.grant("a", 2, 1, 0.0).token == lease.token + 1
    t.void("never leased")


def test_the_batch_of_a_token_is_what_a_commit_of_it_would_count_for():
    t = table()
    lease = t.grant("a", 1, 1, 0.0)
    assert t.batch_of(lease.token, 1) == "a" and t.batch_of(lease.token, 2) is None
    t.take_back(lease)
    assert t.batch_of(lease.token, 1) == t.batch_of(lease.token, 2) == "a"  # as of a late commit
    again = t.grant("a", 2, 1, 0.0)
    assert t.batch_of(lease.token, 1) is None and t.batch_of(again.token, 2) == "a"
    commit(t, again.token, 2)
    assert t.batch_of(again.token, 2) is None and t.batch_of(7, 1) is None


def test_held_leases_are_listed_in_the_order_of_their_grant():
    t = table()
    first, second, third = (t.grant(name, 1, n, 0.0) for n, name in enumerate("abc"))
    commit(t, first.token, 1)
    t.take_back(second)
    again = t.grant("b", 2, 1, 0.0)
    assert list(t.held()) == [third, again]


def test_leases_of_a_session_that_is_alive_last_one_more_ttl():
    t = table()
    mine, other = t.grant("a", 1, 1, 0.0), t.grant("b", 2, 1, 5.0)
    t.renew(1, 8.0)
    assert t.expired(15.0) == [other]
    assert t.expired(18.0) == [mine, other]  # in the order of their grant
    t.renew(99, 0.0)


def test_the_oldest_lease_is_the_one_granted_first():
    t = table()
    assert t.oldest() is None
    first, second = t.grant("a", 1, 1, 0.0), t.grant("b", 1, 2, 0.0)
    assert t.oldest() is first
    commit(t, first.token, 1)
    assert t.oldest() is second


def test_tokens_of_a_later_term_are_larger_than_all_of_an_earlier_one():
    assert table(3).grant("a", 1, 1, 0.0).token == (3 << 32) + 1
    assert commit(table(4), (3 << 32) + 1, 1) == (CommitVerdict.STALE, None)


def test_answers_are_remembered_for_the_last_many_commits_only():
    t = table()
    tokens = [t.grant(i, 1, i, 0.0).token for i in range(65_537)]
    for token in tokens:
        commit(t, token, 1)
    assert commit(t, tokens[0], 1) == (CommitVerdict.STALE, None)
    assert commit(t, tokens[1], 1) == (CommitVerdict.DUPLICATE, None)


class LeaseHistories(RuleBasedStateMachine):
    """The table, compared with a list of all grants: session, batch, and end of each."""

    def __init__(self):
        super().__init__()
        self.table = table(term=1)
        self.now = 0.0
        self.last = {}  # batch → its last token
        self.batch_of = {}  # token → batch
        self.holder = {}  # token → session, of leases that stand
        self.deadline = {}
        self.settled = {}  # batch → token
        self.void = set()

    @rule(batch=st.integers(0, 4), session=st.integers(1, 3))
    def grant(self, batch, session):
        if batch in self.settled:
            return
        if self.last.get(batch) in self.holder:
            with pytest.raises(ValueError, match="leased already"):
                self.table.grant(batch, session, 1, self.now)
            return
        lease = self.table.grant(batch, session, 1, self.now)
        assert lease.token > max(self.batch_of, default=1 << 32)
        self.batch_of[lease.token] = batch
        self.last[batch] = lease.token
        self.holder[lease.token] = session
        self.deadline[lease.token] = self.now + TTL

    @precondition(lambda self: self.batch_of)
    @rule(data=st.data(), session=st.integers(1, 3))
    def commit(self, data, session):
        token = data.draw(st.sampled_from(sorted(self.batch_of)))
        batch = self.batch_of[token]
        verdict, settled = commit(self.table, token, session)
        if self.settled.get(batch) == token:
            expected = CommitVerdict.DUPLICATE
        elif (
            self.last[batch] != token
            or batch in self.settled
            or token in self.void
            or self.holder.get(token, session) != session
        ):
            expected = CommitVerdict.STALE
        else:
            expected = CommitVerdict.COMMITTED
            self.settled[batch] = token
            self.holder.pop(token, None)
        assert verdict is expected
        assert settled == (batch if expected is CommitVerdict.COMMITTED else None)

    @precondition(lambda self: self.batch_of)
    @rule(data=st.data(), session=st.integers(1, 3))
    def adopt(self, data, session):
        token = data.draw(st.sampled_from(sorted(self.batch_of)))
        batch = self.batch_of[token]
        free = (
            self.last[batch] == token
            and token not in self.holder
            and batch not in self.settled
            and token not in self.void
        )
        assert self.table.adopt(token, session, self.now) == (batch if free else None)
        if free:
            self.holder[token] = session
            self.deadline[token] = self.now + TTL

    @rule(batch=st.integers(0, 4))
    def make_nobodys(self, batch):
        if self.last.get(batch) not in self.holder:
            self.table.void(batch)
            if batch in self.last and batch not in self.settled:
                self.void.add(self.last[batch])

    @rule(session=st.integers(1, 3))
    def renew(self, session):
        self.table.renew(session, self.now)
        for token, holder in self.holder.items():
            if holder == session:
                self.deadline[token] = self.now + TTL

    @rule(seconds=st.floats(0, 2 * TTL))
    def expire(self, seconds):
        self.now += seconds
        over = self.table.expired(self.now)
        assert {x.token for x in over} == {
            token for token in self.holder if self.deadline[token] <= self.now
        }
        for lease in over:
            assert self.table.take_back(lease) == self.batch_of[lease.token]
            del self.holder[lease.token]

    @invariant()
    def the_table_holds_what_the_history_says(self):
        assert len(self.table) == len(self.holder)
        for session in (1, 2, 3):
            mine = {token for token, holder in self.holder.items() if holder == session}
            assert {x.token for x in self.table.of_session(session)} == mine
            assert len(self.table.by_session.get(session, ())) == len(mine)


TestLeaseHistories = LeaseHistories.TestCase
TestLeaseHistories.settings = settings(
    max_examples=some(150), stateful_step_count=40, deadline=None
)
