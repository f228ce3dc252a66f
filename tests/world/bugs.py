"""Bugs to plant, one at a time: random worlds must find each of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from headrace.machine.trainer import Trainer
from headrace_server.leasing.desk import Desk
from headrace_server.leasing.words import Outlook
from headrace_server.shaping.plain import Numbers, Stored
from headrace_server.shaping.segments import Segments

from .port import Idle
from .world import World
from .worlds import config_of

#: Number of worlds in which a bug is looked for.
MOST = 300


# The desk


def no_fencing():
    """A commit counts though another trainer may have the batch."""
    end, commit = Desk._end, Desk._commit
    ghosts = {}

    def remember(self, lease):
        ghosts[self, lease.token] = lease
        end(self, lease)

    def late(self, session, token, payload):
        ghost = ghosts.get((self, token))
        if ghost is not None and token not in session.leases and not self._is_committed(token):
            session.leases[token] = ghost
        commit(self, session, token, payload)

    return patch.multiple(Desk, _end=remember, _commit=late)


def answered_before_stored():
    commit = Desk._commit

    def at_once(self, session, token, payload):
        if token in session.leases:
            self.port.answer(session.name, (token,))
        commit(self, session, token, payload)

    return patch.multiple(Desk, _commit=at_once)


def returned_batch_lost():
    def end(self, lease):
        lease.holder.leases.pop(lease.token, None)
        self.port.gone(lease)
        self._look(self._cells[lease.partition])

    return patch.multiple(Desk, _end=end)


def returned_batch_kept_in_memory():
    void = Desk._void

    def keep(self, session, partition, since=(0, -1)):
        n = len(self.port.freed)
        void(self, session, partition, since)
        del self.port.freed[n:]

    return patch.multiple(Desk, _void=keep)


def no_grace():
    init = Desk.__init__

    def impatient(self, *args, **options):
        init(self, *args, **options)
        if self.recovering:
            self._recover()

    return patch.multiple(Desk, __init__=impatient)


def idle_not_told():
    return _filtered(lambda message: not isinstance(message, Idle))


def _filtered(keeps):
    answer = Desk._answer_made

    def silent(self, *args):
        sent = self.port.sent
        n = len(sent)
        answer(self, *args)
        sent[n:] = [one for one in sent[n:] if keeps(one[1])]

    return patch.multiple(Desk, _answer_made=silent)


def no_second_look():
    return patch.multiple(Desk, _look=lambda self, partition: None)


def memory_not_looked_at():
    return patch.multiple(Desk, freed=lambda self: None)


def nothing_beyond_the_memory():
    return patch.multiple(Desk, _is_in_turn=lambda self, cell, work: False)


def source_not_looked_at():
    return patch.multiple(Desk, wake=lambda self, partition: None)


def welcome_before_join_is_stored():
    stored = Desk._stored
    return patch.multiple(
        Desk,
        _stored=lambda self, of, n: stored(self, of, 1 << 60 if of is self._joins else n),
    )


def over_before_stored():
    def at_once(self, request, epoch):
        session, partition = request.session, request.cell.number
        del session.asked[request.number]
        session.idle -= request.idle
        self.port.over(session.name, request.number, partition, epoch, ())

    return patch.multiple(Desk, _answer_over=at_once)


def commits_while_it_makes():
    commit = Desk.commit

    def at_once(self, name, token, payload=None):
        busy, self._busy = self._busy, None
        commit(self, name, token, payload)
        self._busy = busy

    return patch.multiple(Desk, commit=at_once)


def deferred_calls_lost():
    made = Desk.made

    def forget(self, work, made_):
        kept = [of for of in self._deferred if of.func != self._commit]
        self._deferred.clear()
        self._deferred.extend(kept)
        made(self, work, made_)

    return patch.multiple(Desk, made=forget)


def lost_reply_not_repeated():
    welcome = Desk._welcome

    def keep(self, hello, session, stale, others):
        held, hello.held = hello.held, [(token, None) for token in session.leases]
        welcome(self, hello, session, stale, others)
        hello.held = held

    return patch.multiple(Desk, _welcome=keep)


def terms_repeat():
    init = Desk.__init__

    def first(self, partitions, term, port, **options):
        init(self, partitions, 1 + min(partitions, default=0), port, **options)

    return patch.multiple(Desk, __init__=first)


def ranks_join_those_that_are_gone():
    return patch.multiple(Desk, _is_newcomer=lambda self, hello: False)


def births_forgotten():
    init = Desk.__init__

    def forget(self, *args, **options):
        init(self, *args, **{**options, "births": {}})

    return patch.multiple(Desk, __init__=forget)


def claims_out_of_order():
    judge = Desk._judge

    def backwards(self, admitted):
        stale = set()
        for hello, session, others in admitted:  # what is held before what is committed
            commits, hello.commits = hello.commits, []
            stale |= judge(self, [(hello, session, others)])
            hello.commits = commits
        return stale | judge(self, admitted)

    return patch.multiple(Desk, _judge=backwards)


# Machines of partitions


def over_too_early():
    def done(self):
        return self.admission.closed and not self.admission.ready

    return patch.multiple(Segments, done=property(done))


def lanes_kept():
    return patch.multiple(Segments, leave=lambda self, slot, since=(0, -1): None)


def base_not_stored():
    fold = Stored.fold

    def forget(self, kind, *what):
        fold(self, kind, *what)
        if kind == "deal":
            self.before = set()

    return patch.multiple(Stored, fold=forget)


def members_not_stored():
    turns = Segments.turns

    def forget(self):
        *others, indices = turns(self)
        return [*others, [max(indices)] * len(indices)]

    return patch.multiple(Segments, turns=forget)


def old_cursor_for_a_new_run():
    return patch.multiple(Numbers, forget_marks=lambda self: None)


def cursor_too_far():
    mark = Numbers.mark

    def hasty(self, number, cursor):
        first, self.first_open = self.first_open, number
        moved = mark(self, number, cursor)
        self.first_open = max(first, self.base)
        return moved

    return patch.multiple(Numbers, mark=hasty)


# Trainers


@contextmanager
def ranks_pass_partitions_by():
    answer, idle = Desk._answer_made, Trainer.idle

    def told(self, by, wanted, made):
        answer(self, by, wanted, made)
        cell, *of = wanted
        queue = cell.asking.get(tuple(of), ())
        for request in queue if made is Outlook.IDLE and self.world else ():
            if not request.gone:
                self.port.idle(request.session.name, request.number, True)

    def passes(self, owner, requests, live=()):
        rank, self.rank = self.rank, -1
        idle(self, owner, requests, live)
        self.rank = rank

    with ExitStack() as stack:
        stack.enter_context(patch.multiple(Desk, _answer_made=told))
        stack.enter_context(patch.multiple(Trainer, idle=passes))
        yield


def commits_not_repeated():
    greeting = Trainer.greeting

    def silent(self, owner):
        held, _, gets = greeting(self, owner)
        return held, [], gets

    return patch.multiple(Trainer, greeting=silent)


def epochs_ask_early():
    init = Trainer.__init__

    def loose(self, *args, **options):
        init(self, *args, **{**options, "strict": False})

    return patch.multiple(Trainer, __init__=loose)


def early_commits_forgotten():
    commit = Desk._commit

    def forgetful(self, session, token, payload):
        commit(self, session, token, payload)
        if session.early.pop(token, None):
            session.leases.pop(token)

    return patch.multiple(Desk, _commit=forgetful)


def asks_before_all_welcomes():
    welcome = Trainer.welcome

    def hasty(self, owner, *args):
        welcome(self, owner, *args)
        self._unknown.clear()

    return patch.multiple(Trainer, welcome=hasty)


def returned_batch_out_of_place():
    def let_go(self):
        for held in [*self.ready.values()]:
            self.give_back(held.given.token)

    return patch.multiple(Trainer, let_go=let_go)


_DEATHS = {"owner": 0.4, "cut": 0.4}
_LOSSES = {**_DEATHS, "server": 0.2}
_SLEEPERS = {**_DEATHS, "suspend": 0.3}
_RUNS = {**_DEATHS, "job": 0.1, "kill": 0.05}
_QUIET = {"room": 1 << 60, "maps": 0.0, "makes": 0.0, "waits": 0.0, "max_open": 64}
_SMALL = {
    "owners": 1,
    "partitions": 2,
    "rows": 60,
    "size": 2,
    "horizon": 20.0,
    "epochs": 1,
    "world": 0,
    "capacity": 12,
}
_RANKS = {"world": 2, "hold": 1, "room": 1 << 60}
_EPOCHS = {"epochs": 3, "borders": True, "owners": 3, "partitions": 4, "rows": 6}
_SLOW = {"makes": 0.5, "delay": 0.02, "prefetch": 3}

#: Each bug, with what the worlds have that are to find it.
BUGS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    bug.__name__: (bug, {**_SMALL, **world})
    for bug, world in (
        (no_fencing, {"kind": "plain", "faults": _SLEEPERS, "trainers": 3, "rows": 80}),
        (answered_before_stored, {}),
        (returned_batch_lost, {"kind": "plain", "faults": {"return": 0.2}}),
        (returned_batch_kept_in_memory, {"kind": "bare", "faults": {"return": 0.2}}),
        (no_grace, {"kind": "plain", "faults": _DEATHS, "trainers": 4, "rows": 80}),
        (idle_not_told, {"kind": "arrival", "room": 1, "hold": 3, "stubborn": True}),
        (no_second_look, {"kind": "arrival"}),
        (memory_not_looked_at, {"kind": "arrival", "room": 2, "maps": 1.0, "hold": 3}),
        (nothing_beyond_the_memory, {**_RANKS, "room": 3, "prefetch": 5, "faults": _RUNS}),
        (source_not_looked_at, {"waits": 0.1}),
        (
            welcome_before_join_is_stored,
            {
                "kind": "plain",
                "faults": {"owner": 1.0, "leave": 1.0},
                "trainers": 4,
                "delay": 0.001,
                "rows": 800,
                "horizon": 60.0,
                "prefetch": 2,
                **_QUIET,
            },
        ),
        (
            over_before_stored,
            {**_EPOCHS, "kind": "arrival", "faults": {"owner": 1.0}, "trainers": 3, "delay": 0.001},
        ),
        (commits_while_it_makes, {**_SLOW, "guard": True}),
        (deferred_calls_lost, _SLOW),
        (lost_reply_not_repeated, {"faults": {"cut": 0.5}, "kind": "plain", "delay": 0.2}),
        (terms_repeat, {"faults": _LOSSES}),
        (
            ranks_join_those_that_are_gone,
            {"kind": "plain", **_RANKS, "named": False, "faults": {"job": 0.2}, "rows": 80},
        ),
        (
            births_forgotten,
            {"kind": "plain", **_RANKS, "named": False, "faults": _RUNS, "rows": 80},
        ),
        (claims_out_of_order, {"kind": "bare", "faults": _DEATHS, "prefetch": 5}),
        (over_too_early, {"kind": "arrival"}),
        (lanes_kept, {"kind": "lanes", "faults": {"leave": 0.2}}),
        (base_not_stored, {"kind": "plain", **_RANKS, "faults": _RUNS, "rows": 80}),
        (members_not_stored, {"kind": "arrival", **_RANKS, "faults": _DEATHS}),
        (old_cursor_for_a_new_run, {"kind": "plain", **_RANKS, "faults": _RUNS, "rows": 80}),
        (cursor_too_far, {"kind": "plain", "faults": _DEATHS, "rows": 80}),
        (ranks_pass_partitions_by, {"kind": "arrival", **_RANKS}),
        (commits_not_repeated, {"faults": _DEATHS}),
        (epochs_ask_early, {**_EPOCHS, "kind": "arrival", "trainers": 3}),
        (early_commits_forgotten, {"kind": "bare", "hold": 3, "prefetch": 5}),
        (
            asks_before_all_welcomes,
            {
                "kind": "plain",
                **_RANKS,
                "owners": 3,
                "partitions": 5,
                "prefetch": 2,
                "faults": {"kill": 0.3},
            },
        ),
        (returned_batch_out_of_place, {"kind": "plain", **_RANKS, "faults": {"stop": 0.2}}),
    )
}


#: Where to begin, for bugs that few worlds find.
_RARE = {
    "memory_not_looked_at": 6, "welcome_before_join_is_stored": 328, "over_before_stored": 263,
    "old_cursor_for_a_new_run": 60, "no_fencing": 32, "early_commits_forgotten": 9,
    "claims_out_of_order": 5, "ranks_join_those_that_are_gone": 14, "base_not_stored": 40,
}  # fmt: skip


def find(name: str, most: int = MOST) -> tuple[int, str]:
    """Plant a bug; return the seed of the world that finds it, and what it says ("": none)."""
    bug, changes = BUGS[name]
    first = _RARE.get(name, 0)
    with bug():
        for seed in range(first, first + most):
            config = replace(config_of(seed), **{"steer": "", "faults": {}, **changes})
            try:
                World(seed, config).run()
            except Exception as error:
                return seed, f"{type(error).__name__}: {error}"[:80]
    return -1, ""
