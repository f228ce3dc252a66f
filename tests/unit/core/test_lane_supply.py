"""Each trainer has lanes of its own, and only it gets their batches."""

from headrace_server.core.admitted_examples import AT_SERVER, NOWHERE
from headrace_server.core.batch_lifecycle import BatchLifecycle
from headrace_server.core.dispatch_effects import Batch, Freed, Leave, Want
from headrace_server.core.lane_supply import LaneSupply
from headrace_server.core.trainers import Trainers


def batch(partition, number, stripe=0):
    return Batch(partition, number, 1, meta={"stripe": stripe})


class Queues(LaneSupply):
    """Queues whose trainers and effects are at hand."""

    def __init__(self, partitions, states=AT_SERVER):
        self.trainers = Trainers(64, lambda session: 0)
        self.hands = BatchLifecycle(10.0, 0, self.trainers)
        super().__init__(partitions, self.hands, states)


def left(q, session):
    """Let a trainer leave; return the batches that this frees, and the other effects."""
    effects = q.hands.effects
    effects.clear()
    q.leave(session, -1)
    freed = [effect.batch for effect in effects if isinstance(effect, Freed)]
    return freed, [effect for effect in effects if not isinstance(effect, Freed)]


def lanes(partitions, *sessions):
    q = Queues(range(partitions))
    return q, [q.wants([(s, 1)])[0] for s in sessions]


def test_each_trainer_gets_lanes_of_its_own_in_the_partition_with_the_fewest():
    _, wants = lanes(2, 10, 11, 12)
    assert wants == [Want(0, 1, 0), Want(1, 1, 1), Want(0, 1, 2)]


def test_a_batch_is_for_the_trainer_of_its_lanes_alone():
    q, _ = lanes(1, 10, 11)
    assert q.made(batch(0, 0, stripe=1))
    assert q.next(10) is None and q.next(12) is None
    assert q.next(11).number == 0


def test_a_stripe_is_asked_for_as_many_batches_as_its_trainer_can_take():
    q, _ = lanes(1, 10)
    assert q.wants([(10, 1)]) == []
    assert q.wants([(10, 3)]) == [Want(0, 2, 0)]
    q.made(batch(0, 0))
    assert q.wants([(10, 3)]) == []  # one of the three is here
    q.next(10)
    assert q.wants([(10, 2)]) == []
    assert q.wants([(10, 3)]) == [Want(0, 1, 0)]


def test_a_lost_batch_goes_to_the_same_trainer_again_and_is_not_requested():
    q, _ = lanes(1, 10)
    q.made(batch(0, 0))
    lost = q.next(10)
    assert q.put_back(10, lost)
    assert q.wants([(10, 1)]) == [] and q.next(10) is lost
    assert not q.put_back(99, lost)


def test_batches_of_a_trainer_that_leaves_are_void_once_also_those_that_come_late():
    q, _ = lanes(1, 10)
    q.wants([(10, 3)])
    q.made(batch(0, 0))
    taken = q.next(10)
    q.made(batch(0, 1))
    q.put_back(10, taken)
    void, others = left(q, 10)
    assert [b.number for b in void] == [0, 1] and others == [Leave(0, 0)]
    assert left(q, 10) == ([], [])
    assert q.made(batch(0, 2)) is False
    assert q.put_back(10, taken) is False


def test_a_trainer_whose_lanes_ran_dry_gets_some_in_another_partition():
    q, _ = lanes(2, 10)
    q.dry(0)
    assert q.wants([(10, 2)]) == [Want(1, 2, 1)]
    q.dry(1)
    assert q.wants([(10, 2)]) == [] and q.missing() is None


def test_a_dry_partition_is_asked_again_when_a_trainer_has_left_it():
    q, _ = lanes(1, 10, 11)
    q.dry(1)
    assert q.wants([(11, 1)]) == []
    q.leave(10, -1)
    assert q.wants([(11, 1)]) == [Want(0, 1, 2)]


def test_a_word_that_lanes_are_dry_which_crossed_a_leave_does_not_hide_what_that_left():
    q, _ = lanes(1, 10, 11)
    q.leave(10, -1)
    q.dry(1)  # said before the partition heard of the leave
    assert q.wants([(11, 1)]) == [Want(0, 1, 2)]
    q.dry(2)  # said after it
    assert q.wants([(11, 1)]) == []


def test_a_dry_word_for_lanes_that_were_left_means_nothing():
    q, _ = lanes(1, 10)
    q.leave(10, -1)
    q.dry(0)
    q.dry(77)
    assert q.wants([(11, 1)]) == [Want(0, 1, 1)]


def test_when_a_partition_ends_its_trainers_go_to_others():
    q, _ = lanes(2, 10)
    q.end(0)
    assert q.wants([(10, 1)]) == [Want(1, 1, 1)]
    q.end(1)
    assert q.wants([(10, 1)]) == [] and not q.open


def test_the_batch_of_lanes_that_is_waited_for_is_one_that_was_asked_for():
    q = Queues(range(2))
    assert q.missing() is None
    q.wants([(10, 1)])
    assert q.missing() == (0, 0)
    q.made(batch(0, 0))
    assert q.missing() is None


def test_lanes_lie_in_those_partitions_of_a_feed_that_are_here():
    q = Queues([6, 3])
    assert {want.partition for want in q.wants([(10, 1), (11, 1)])} == {3, 6}
    assert [effect.partition for effect in left(q, 11)[1]] == [6]


def trainer(q, session):
    q.trainers.join(session, 0.0, -1)
    return q.trainers.present[session]


def test_a_stripe_without_states_that_is_dry_still_has_its_batches_until_its_trainer_leaves():
    q = Queues(range(2), NOWHERE)
    one = trainer(q, 1)
    assert q.wants([(1, 1)]) == [Want(0, 1, 0)]
    q.made(batch(0, 0, stripe=0))
    last = q.next(1)
    assert not q.is_exhausted(one)
    q.dry(0)
    assert not q.is_exhausted(one), "partition 1 may have work for it"
    assert q.wants([(1, 1)]) == [Want(1, 1, 1)]
    q.put_back(1, last)  # it was lost on its way
    assert q.next(1) is last
    q.dry(1)
    assert q.is_exhausted(one)
    assert q.put_back(1, last) and not q.is_exhausted(one)
    freed, effects = left(q, 1)
    assert freed == [last] and effects == [Leave(0, 0), Leave(1, 1)]
    assert q.wants([(2, 1)]) == [Want(0, 1, 2)], "its rows may go on there"


def test_a_stripe_with_states_ends_with_its_last_batch():
    q = Queues(range(1))
    one = trainer(q, 1)
    q.wants([(1, 1)])
    q.dry(0)
    assert not q.is_exhausted(one) and not q.put_back(1, batch(0, 0, stripe=0))
    assert left(q, 1) == ([], [])
