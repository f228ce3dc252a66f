"""A desk tells people and its caller its state; the simulated world tests whom it gives what."""

from dataclasses import replace

import msgpack
import pytest

from headrace_proto.errors import ProtocolError
from headrace_proto.limits import MAX_COUNT
from headrace_proto.step_messages import Get
from headrace_server.leasing.desk import SESSIONS, Desk
from headrace_server.leasing.words import Batch, Greeting, Outlook
from headrace_server.shaping import plain as machine
from tests.world.journal import Journal, Stored
from tests.world.partitions import Plain, Segments, Slab, rows_of
from tests.world.port import Answer, Give, Idle, Over, Port, Refused, Welcome

A, B = b"a", b"b"


def step(desk):
    """Do one step of making; return False where there is nothing to do."""
    if (found := desk.next_work() or (desk.work_ahead() if desk.ahead else None)) is None:
        return False
    partition = desk.partitions[found.partition]
    desk.made(found, partition.make(found.slot, found.epoch, found.beyond, found.most))
    return True


class At:
    """A desk of one or more partitions whose trainers have joined."""

    def __init__(self, partitions, *sessions, term=1, **options):
        every = partitions if isinstance(partitions, list) else [partitions]
        self.partition = every[0]
        self.desk = Desk(dict(enumerate(every)), term, Port(), **options)
        self.requests = 0
        for session in sessions:
            self.desk.hello(Greeting(session), 0.0)
        self.desk.stored(SESSIONS, len(sessions))
        self.told(Welcome)

    def told(self, *kinds):
        sent = [message for _, message in self.desk.port.sent]
        self.desk.port.sent.clear()
        return [message for message in sent if isinstance(message, kinds)]

    def ask(self, session, n=1, partition=0):
        gets = [Get(self.requests + i, partition, 0) for i in range(1, n + 1)]
        self.requests += n
        self.desk.ask(session, gets)
        while step(self.desk):
            pass
        return self.told(Give, Idle, Over)


def of_ranks(world, run=1):
    """Return what is stored when a run of ranks has begun."""
    return Stored(run=run, machine=machine.Stored(deals=1, run=run, world=world))


def held_before(n, slot, turn):
    """Return the token and the batch of an earlier life, of partition 0."""
    return (1 << 32) + n, Batch(0, n, slot, turn, 2, msgpack.packb([b"", []]))


def plain(rows=100, size=2):
    return Plain(0, Stored(), Slab(1000), rows=rows, size=size)


class Ranks:
    """A desk that ranks without a run's number greet."""

    def __init__(self):
        self.desk = Desk({0: plain()}, 1, Port())

    def greet(self, *ranks, world=2, birth=1, run=0, now=0.0):
        for rank in ranks:
            self.desk.hello(Greeting(b"%d-%d" % (rank, birth), rank, world, run, birth), now)

    def runs(self):
        """Return the runs of ranks that are let in since the last call."""
        self.desk.stored(SESSIONS, len(self.desk.port.log))
        sent, self.desk.port.sent = self.desk.port.sent, []
        self.refused = {name: one.text for name, one in sent if isinstance(one, Refused)}
        return {name: one.run for name, one in sent if isinstance(one, Welcome)}

    def begin(self, run, birth):
        """Begin a run once all others are gone; return its number, or why it does not begin."""
        for name in list(self.desk.sessions):
            self.desk.leave(name)
        self.greet(0, 1, run=run, birth=birth)
        (run,) = {*self.runs().values(), *self.refused.values()}
        return run


def lanes():
    return Segments(
        0, Stored(), Slab(1000), counts=[3] * 8, size=2, capacity=8, order="lanes", states=False
    )


def test_people_learn_who_holds_a_batch_for_how_long_and_what_is_paused():
    at = At(plain(), A, B)
    at.desk.seen(A, 5.0)
    at.ask(A)
    at.desk.seen(B, 8.0)
    at.ask(B)
    said = at.desk.describe(12.0, {A: "trainer 1", B: "trainer 2"}.__getitem__)
    assert said == "2 batches are leased, the longest to trainer 1 for 7 s"
    assert at.desk.holder(0, 1) == (B, 8.0) and at.desk.holder(0, 2) is None
    at.desk.paused = True
    assert not at.ask(A)
    assert "the server is stopping and hands out nothing more" in at.desk.describe(12.0)
    at.desk.paused = False
    assert at.ask(B)


def test_people_learn_which_ranks_have_not_joined():
    at = At(plain(), A)
    at.desk.hello(Greeting(B, rank=1, world=3, run=1), 0.0)
    assert "1 trainers have come" in at.desk.describe(0.0)
    at.desk.seen(A, 1.0)
    assert "trainers without a rank use this feed" in str(at.desk.port.sent)
    at.desk.hello(Greeting(B, rank=1, world=3, run=1), 1.0)
    at.desk.leave(A)
    assert at.desk.describe(0.0) == "2 ranks have not joined: 0, 2"


def test_ranks_that_begin_again_without_a_number_are_a_new_run_once_all_others_are_gone():
    ranks = Ranks()
    ranks.greet(0, 1)
    assert ranks.runs() == {b"0-1": 1, b"1-1": 1}
    ranks.greet(1, birth=2)
    assert not ranks.runs(), "rank 0 may be alive"
    assert "1 trainers have come" in ranks.desk.describe(0.0)
    ranks.greet(0, birth=2)
    assert ranks.runs() == {b"0-2": 2, b"1-2": 2}
    ranks.greet(0, 1, 2, world=3, birth=3)
    assert ranks.runs() == {b"0-3": 3, b"1-3": 3, b"2-3": 3}
    ranks.greet(0, world=1, birth=4)
    ranks.desk.leave(b"1-3")
    assert not ranks.runs(), "rank 2 may be alive"
    ranks.desk.leave(b"2-3")
    assert ranks.runs() == {b"0-4": 4}


def test_a_rank_that_begins_again_alone_without_a_number_goes_on_with_the_others():
    ranks = Ranks()
    ranks.greet(0, 1)
    ranks.runs()
    ranks.greet(1, birth=2)
    ranks.desk.seen(b"1-2", 1.0)
    assert not ranks.runs() and not ranks.desk.port.sent
    ranks.desk.seen(b"0-1", 1.0)
    assert ranks.runs() == {b"1-2": 1}


def test_an_earlier_process_of_a_rank_is_refused_after_a_later_one():
    ranks = Ranks()
    ranks.greet(0, 1, run=7, birth=2)
    assert ranks.runs() == {b"0-2": 7, b"1-2": 7}
    ranks.greet(1, run=7, birth=1)
    assert not ranks.runs() and "another process has the rank" in ranks.refused[b"1-1"]


def test_ranks_without_a_number_go_on_after_a_run_that_had_one():
    ranks = Ranks()
    ranks.desk.hello(Greeting(A, 0, 2, run=7, birth=1), 0.0)
    ranks.desk.leave(A)
    ranks.greet(0, 1, birth=2)
    assert ranks.runs() == {b"0-2": 8, b"1-2": 8}


def test_a_trainer_without_a_rank_waits_for_a_sign_of_the_ranks_or_their_end():
    ranks = Ranks()
    ranks.greet(0, 1, run=7)
    ranks.runs()
    ranks.greet(-1, birth=2, world=0)
    ranks.desk.seen(b"0-1", 0.5)  # it may have died since
    assert not ranks.runs() and not ranks.refused
    ranks.desk.seen(b"0-1", 1.0)
    assert not ranks.runs() and "world_size=2: connect with rank=" in str(ranks.refused)
    ranks.greet(-1, birth=2, world=0)
    ranks.desk.leave(b"0-1")
    assert not ranks.runs()
    ranks.desk.leave(b"1-1")
    assert ranks.runs() == {b"-1-2": 0} and not ranks.desk.world


def test_a_number_names_a_run_of_ranks_and_does_not_order_runs():
    ranks = Ranks()
    assert [ranks.begin(run, birth=run) for run in (900, 5, 1 << 61)] == [900, 5, 1 << 61]
    for over in (900, 5):
        assert "is of a run that is over" in ranks.begin(over, birth=1000)
    assert ranks.begin(1 << 61, birth=(1 << 61) + 1) == 1 << 61, "its ranks come back"


def test_another_run_waits_for_a_sign_of_the_present_one_and_is_refused_then():
    ranks = Ranks()
    ranks.greet(0, 1, run=7)
    ranks.runs()
    ranks.greet(0, run=3, birth=2, now=10.0)
    ranks.desk.seen(b"1-1", 10.5)  # it may have died since
    assert not ranks.runs() and "1 trainers have come" in ranks.desk.describe(0.0)
    ranks.desk.seen(b"1-1", 11.0)
    assert not ranks.runs()
    (why,) = ranks.refused.values()
    assert "run 7, of which there are the ranks 0, 1; this trainer is of run 3" in why
    assert "End all ranks of that run first" in why
    assert [*ranks.desk.sessions] == [b"0-1", b"1-1"], "nothing has changed for them"


def test_another_run_begins_once_all_ranks_of_the_present_one_are_gone():
    ranks = Ranks()
    ranks.greet(0, 1, run=7)
    ranks.runs()
    ranks.greet(0, 1, 2, world=3, run=3, birth=2)
    ranks.desk.leave(b"0-1")
    assert not ranks.runs(), "rank 1 may be alive"
    ranks.desk.leave(b"1-1")
    assert ranks.runs() == {b"0-2": 3, b"1-2": 3, b"2-2": 3}


def test_of_two_runs_that_wait_the_one_that_began_last_begins():
    ranks = Ranks()
    ranks.greet(0, run=7)
    ranks.runs()
    ranks.greet(0, run=8, birth=2)
    ranks.greet(0, 1, run=3, birth=3)
    ranks.desk.leave(b"0-1")
    assert ranks.runs() == {b"0-3": 3, b"1-3": 3}
    ranks.desk.leave(b"0-3")
    ranks.desk.leave(b"1-3")
    assert ranks.runs() == {b"0-2": 8}


def test_the_last_64_runs_that_are_over_are_remembered_also_by_a_later_life():
    ranks = Ranks()
    for run in range(1, 67):
        assert ranks.begin(run, birth=run) == run
    ranks.desk = Desk({0: plain()}, 2, Port(), runs=ranks.desk.runs)
    assert ranks.desk.run == 66
    assert "is of a run that is over" in ranks.begin(2, birth=67)
    assert ranks.begin(1, birth=68) == 1, "it was forgotten"


def test_ranks_without_a_number_get_one_that_no_run_had():
    ranks = Ranks()
    for run in (2, 1, MAX_COUNT):
        ranks.begin(run, birth=run)
    assert ranks.begin(0, birth=3) == 3


def test_the_present_run_is_the_one_whose_deals_were_cut_off_by_the_death_of_the_owner():
    """Partition 1 has the deal of run 4 stored, and neither partition 0 nor the note has it."""
    parts = {p: Plain(p, of_ranks(2, run), Slab(9), rows=9, size=2) for p, run in enumerate((9, 4))}
    desk = Desk(parts, 2, Port(), runs=[9])
    assert (desk.run, desk.world) == (4, 2)
    assert {(one.run, one.world) for one in parts.values()} == {(4, 2)}
    assert Desk(parts, 3, Port(), runs=[4, 9]).run == 9, "another owner knows that 4 is over"


def test_a_session_that_greets_with_another_run_ends_no_other_rank():
    ranks = Ranks()
    ranks.greet(0, 1, run=7)
    ranks.runs()
    ranks.greet(1, run=8)
    assert not ranks.runs() and "End all ranks of that run first" in ranks.refused[b"1-1"]
    assert b"0-1" in ranks.desk.sessions


def test_a_life_waits_with_another_run_while_ranks_of_the_present_one_are_there():
    ranks = Ranks()
    before = Plain(0, of_ranks(2, 7), Slab(9), rows=9, size=2)
    ranks.desk = Desk({0: before}, 2, Port(), known={b"0-1": (7, 0, 1)}, runs=[7])
    ranks.greet(0, run=3, birth=2)
    ranks.greet(0, run=7)
    assert ranks.runs() == {b"0-1": 7}
    ranks.desk.leave(b"0-1")
    assert ranks.runs() == {b"0-2": 3}


def test_a_session_has_no_more_requests_batches_and_commits_than_any_trainer():
    at = At(plain(), A, max_open=1)
    first, *_ = at.ask(A, 11)
    at.desk.commit(A, first.token)
    with pytest.raises(ProtocolError, match="more than 12 requests, batches and commits are open"):
        at.ask(A, 2)
    assert at.desk.standing_of(A)["requests"] == 0, "a message that is refused changes nothing"
    assert [type(message) for message in at.ask(A)] == [Give]


def test_a_request_whose_number_was_used_is_refused():
    """The desk would lose the first one, and end at its answer."""
    at = At(plain(), A)
    at.desk.paused = True
    at.desk.ask(A, [Get(7, 0, 0)])
    for gets in ([Get(7, 0)], [Get(8, 0), Get(8, 0)], [Get(3, 0)]):
        with pytest.raises(ProtocolError, match="numbers grow"):
            at.desk.ask(A, gets)
    at.desk.paused = False
    assert [give.request for give in at.ask(A, 0)] == [7]


def test_a_request_of_a_greeting_uses_its_number():
    at = At(plain(), A)
    at.desk.paused = True
    at.desk.hello(Greeting(A, gets=[(7, 0, 0)]), 0.0)
    with pytest.raises(ProtocolError, match="request 7 comes after 7"):
        at.desk.ask(A, [Get(7, 0, 0)])


def test_leases_that_end_with_a_silent_session_are_counted():
    at = At(plain(), A)
    at.ask(A, 2)
    assert at.desk.tick(at.desk.ttl - 1.0) == []
    assert at.desk.tick(at.desk.ttl) == [A]
    assert at.desk.counts["expired"] == 2


def test_batches_that_go_out_again_are_counted():
    at = At(plain(), A)
    returned, lost = at.ask(A, 2)
    at.desk.give_back(A, [returned.token])
    at.desk.hello(Greeting(A, gets=[(lost.request, 0, 0)]), 0.0)
    assert [give.token for give in at.told(Give)] == [lost.token]
    assert at.desk.counts["redelivered"] == 2


def test_a_commit_that_waits_for_an_earlier_batch_of_its_lanes_is_stale_once_that_is_returned():
    at = At(lanes(), A)
    first, second = at.ask(A, 2)
    at.desk.commit(A, second.token)
    at.desk.give_back(A, [first.token])
    (answer,) = at.told(Answer)
    assert answer.stale == (second.token,) and at.desk.counts["stale"] == 1


def test_a_greeting_gets_no_batch_of_another_trainer_by_a_token_of_this_life():
    at = At(plain(), A, B)
    (mine,) = at.ask(A)
    (ended,) = at.ask(B)
    at.desk.give_back(B, [ended.token])
    for token in (ended.token, ended.token + 1):  # the second was never issued
        at.desk.hello(Greeting(B, commits=[(token, replace(mine.batch), None)]), 0.0)
        (answer,) = at.told(Answer)
        assert answer.stale == (token,)
    at.desk.commit(A, mine.token)
    assert at.desk.counts["batches"] == 1


def test_lanes_go_on_after_a_batch_if_later_ones_are_made_in_the_same_step():
    at = At(lanes(), A)
    lives = [give.live for n in (5, 5, 5) for give in at.ask(A, n) if isinstance(give, Give)]
    assert lives == [True] * (len(lives) - 1) + [False]


def test_a_trainer_has_its_lanes_again_after_a_death_though_another_asks_first():
    """Its batch was committed, so it holds nothing by which the desk knows its lanes."""
    journal = Journal()

    def life(term, **options):
        shape = {"size": 2, "capacity": 8, "order": "lanes", "states": False}
        one = Segments(0, journal.of(0), Slab(100), counts=[3] * 8, **shape)
        return At(one, B, A, term=term, **options)

    def examples(give):
        return [(lane, example) for lane, example, *_ in rows_of(give.batch.place)]

    first = life(1)
    (give,) = first.ask(A)
    first.desk.commit(A, give.token)
    for record in first.partition.take_records():
        journal.write(0, 0, record)
    second = life(2, known=dict.fromkeys((A, B), (0, -1, 0)))
    (of_other,) = second.ask(B)
    (mine,) = second.ask(A)
    assert examples(mine) == examples(give) != examples(of_other)


def test_a_trainer_gets_the_batch_that_it_needs_next_though_another_holds_all_memory():
    """One thread has both: the other one goes on after this one's batch."""
    at = At(Plain(0, Stored(), Slab(2), rows=100, size=2), A, B)
    at.desk.ask(A, [Get(n, 0, 0) for n in range(1, 4)])
    while step(at.desk):
        pass
    assert [type(message) for message in at.told(Give, Idle)] == [Give, Give, Idle]
    give, idle = at.ask(B, 2)
    assert give.token in at.desk.sessions[B].leases, "not A's third, though it is older"
    assert idle == Idle(2, True)


def test_a_trainer_gets_the_batch_that_it_needs_next_though_later_ones_fill_the_memory():
    """It prefetches from two partitions; the source of one has nothing for a while."""
    slab = Slab(2)
    at = At([Plain(n, Stored(), slab, rows=100, size=2) for n in (0, 1)], A)
    at.desk.ask(A, [Get(1, 0, 0)])
    at.desk.made(at.desk.next_work(), Outlook.WAITS)
    at.requests = 1
    assert [type(message) for message in at.ask(A, 3, partition=1)] == [Give, Give, Idle]
    at.desk.wake(0)
    while step(at.desk):
        pass
    (give,) = at.told(Give)
    assert give.request == 1


def test_a_rank_gets_what_is_made_again_before_later_batches_though_memory_is_full():
    """It held these two of an earlier life, and returns them once two others are made ahead."""
    at = At(Plain(0, of_ranks(1), Slab(2), rows=100, size=2))
    held = [held_before(n, 0, (0, n)) for n in (0, 1)]
    at.desk = Desk({0: at.partition}, 2, Port(), known={A: (1, 0, 0)})
    at.desk.hello(Greeting(A, rank=0, world=1, run=1, held=held), 0.0)
    at.desk.stored(SESSIONS, 1)
    assert not at.ask(A, 0) and at.desk.standing() == {"ready": 2, "leased": 2, "saving": 0}
    at.desk.give_back(A, [token for token, _ in held])
    gives = at.ask(A, 4)
    for give in gives:
        at.desk.commit(A, give.token)
        gives += at.ask(A, 0)
    assert [give.batch.number for give in gives] == [0, 1, 2, 3]


def test_a_trainer_gets_what_is_made_again_before_later_batches_though_a_read_comes_first():
    """The one before it held these two of an earlier life, and left while the next read was due."""
    at = At(plain())
    held = [held_before(n, -1, (0, n)) for n in (0, 1)]
    at.desk = Desk({0: at.partition}, 2, Port(), known={A: (0, -1, 0)})
    at.desk.hello(Greeting(A, held=held), 0.0)
    at.desk.stored(SESSIONS, 1)
    at.ask(A, 0)
    at.desk.ask(A, [Get(1, 0, 0)])
    assert step(at.desk) and at.desk.standing() == {"ready": 1, "leased": 3, "saving": 0}
    assert [give.batch.number for give in at.told(Give)] == [2]
    at.desk.leave(A)
    at.desk.hello(Greeting(B), 0.0)
    at.desk.stored(SESSIONS, 3)
    assert [give.batch.number for give in at.ask(B, 5)] == [0, 1, 2, 3, 4]


def test_an_epoch_is_over_while_a_later_batch_waits_for_memory():
    at = At(Plain(0, Stored(), Slab(1), rows=2, size=2, epochs=2, borders=True), A, B)
    at.desk.ask(A, [Get(1, 0, 0), Get(2, 0, 1)])
    while step(at.desk):
        pass
    assert [type(message) for message in at.told(Give, Idle)] == [Give, Idle]
    assert not at.ask(B)
    at.desk.stored(0, len(at.desk.port.log))
    assert [message.epoch for message in at.told(Over)] == [0]


def test_a_refused_commit_ends_its_lease():
    at = At(plain(), A)
    (give,) = at.ask(A)
    at.partition.commit = lambda batch, token, payload: ("state", "the states are missing")
    at.desk.commit(A, give.token)
    (answer,) = at.told(Answer)
    assert answer.faults == ((give.token, "state", "the states are missing"),)
    assert at.desk.leased == 0 and at.ask(A)[0].batch is give.batch


def test_the_last_commit_of_lanes_is_known_until_they_are_void():
    at = At(lanes(), A)
    first, second, third = at.ask(A, 3)
    at.desk.commit(A, first.token)
    assert at.desk.last_committed(A, first.token) is first.batch
    at.desk.commit(A, second.token)
    assert at.desk.last_committed(A, first.token) is None
    assert at.desk.last_committed(A, second.token) is second.batch
    at.desk.give_back(A, [third.token])
    assert at.desk.last_committed(A, second.token) is None


def test_what_is_done_is_counted_and_the_feed_ends_when_all_is_stored():
    at = At(plain(rows=5), A)
    gives = at.ask(A, 3)
    for give in gives:
        at.desk.commit(A, give.token)
    assert at.desk.counts["batches"] == 3 and at.desk.counts["rows"] == 5
    assert at.desk.saving == 3 and not at.desk.ended
    assert not at.ask(A)
    at.desk.stored(0, len(at.desk.port.log))
    assert [type(message) for message in at.told(Answer, Over)] == [Over, Answer]
    assert at.desk.ended and at.desk.standing() == {"ready": 0, "leased": 0, "saving": 0}


def test_a_feed_with_more_to_come_has_not_ended_though_all_that_was_made_is_stored():
    at = At(lanes(), A)
    for _ in range(2):
        (give,) = at.ask(A)
        at.desk.commit(A, give.token)
        at.desk.stored(0, len(at.desk.port.log))
        assert at.desk.saving == at.desk.leased == 0 and not at.desk.ended


def test_a_source_that_has_nothing_is_asked_again_when_it_wakes():
    at = At(plain(), A)
    make, at.partition.make = at.partition.make, lambda *_: Outlook.WAITS
    assert not at.ask(A)
    at.partition.make = make
    assert not at.ask(A, 0)
    at.desk.wake(0)
    assert [type(message) for message in at.ask(A, 0)] == [Give]


def test_a_partition_that_can_take_no_order_yet_works_between_two_questions():
    """So it makes its batches again without the lock of its owner, though enough is made ahead."""
    at = At(plain(), A)
    while step(at.desk):
        pass
    propose, outcomes = at.partition.propose, [False, False, True]
    at.partition.propose = lambda what: propose(what) if outcomes.pop(0) else None
    for _ in range(2):
        assert at.desk.steer(0, ("close", None)) is None
        assert step(at.desk) and not step(at.desk)
    assert at.desk.steer(0, ("close", None)) is not None


def test_a_newcomer_learns_of_batches_that_come_back_while_their_partition_makes_others():
    at = At(plain(), A)
    at.desk.ask(A, [Get(1, 0, 0)])
    while not (gives := at.told(Give)):
        assert step(at.desk)
    work = at.desk.work_ahead()
    at.desk.begin(work)
    at.desk.leave(A)
    at.desk.hello(Greeting(B), 0.0)
    at.desk.stored(SESSIONS, 3)
    assert not at.told(Welcome), "it could name a later turn"
    at.desk.made(work, at.partition.make(work.slot, work.epoch))
    (welcome,) = at.told(Welcome)
    assert welcome.next == {0: gives[0].batch.turn}


def test_a_batch_that_comes_back_while_its_partition_makes_others_is_given_before_these():
    at = At(plain(), A, ahead=3)
    (first,) = at.ask(A)
    at.desk.ask(A, [Get(7, 0, 0)])
    at.told(Give)
    work = at.desk.work_ahead()
    assert at.desk.standing()["ready"] == 2
    at.desk.begin(work)
    at.desk.give_back(A, [first.batch.token])
    at.desk.ask(A, [Get(8, 0, 0)])
    assert not at.desk.next_work() and not at.told(Give), "a later one is ready"
    at.desk.made(work, at.partition.make(work.slot, work.epoch))
    (again,) = at.told(Give)
    assert again.batch.turn == first.batch.turn


def test_a_request_gets_no_batch_of_a_later_epoch_that_is_made_at_once():
    """It was left unwritten for want of memory, and is the next one that is written."""
    at = At(plain(), A)
    at.desk.port.make = lambda partition, slot, epoch, most: [Batch(0, 9, slot, (epoch + 1, 0), 2)]
    (answer,) = at.ask(A)
    assert isinstance(answer, Over) and answer.epoch == 0
    assert at.desk.standing()["ready"] > 0


def test_a_partition_that_ends_for_one_trainer_of_lanes_ends_for_those_that_it_let_wait():
    at = At(lanes(), A, B)
    answers = [Outlook.IDLE, Outlook.ENDED, Outlook.ENDED]
    at.partition.make = lambda *_: answers.pop(0)
    assert [type(message) for message in at.ask(A)] == [Idle]
    at.ask(B)
    at.desk.stored(0, 1)
    while step(at.desk):
        pass
    assert not answers and len(at.told(Over)) == 2
