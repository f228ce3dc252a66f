"""A batch is in one hand at a time, is settled once, and only its last holder can settle it."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace_server.core.lease import CommitVerdict, LeaseTable
from headrace_server.shaping.transitions import IllegalEvent
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


def test_an_illegal_event_changes_nothing_and_its_error_names_the_lease():
    t = table()
    first = t.grant("a", 1, 1, 2.0)
    t.take_back(first)
    second = t.grant("a", 2, 4, 12.0)
    what = "batch a, token 2 of trainer 2, {}: it is {}"
    with pytest.raises(IllegalEvent, match=what.format("is leased already", "held")):
        t.grant("a", 3, 1, 13.0)
    with pytest.raises(IllegalEvent, match=what.format("is leased", "held")):
        t.void("a")
    with pytest.raises(IllegalEvent, match="has no commit that is being stored"):
        t.stored(second)
    assert list(t.held()) == [second] and t.unstored == {}
    t.commit(second.token, 2)
    with pytest.raises(IllegalEvent, match=what.format("is in nobody's hands", "saving")):
        t.take_back(second)
    with pytest.raises(IllegalEvent, match="token 2 is known already"):
        t.admit(second.token, "a", 1, 13.0)


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
