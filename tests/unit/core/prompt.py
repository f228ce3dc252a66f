"""A dispatcher whose workers store every commit in the moment in which it is made."""

from __future__ import annotations

from headrace_server.core.dispatch import Dispatcher
from headrace_server.core.dispatch_effects import Answer, StoreCommit

__all__ = ["Prompt"]


class Prompt(Dispatcher):
    """All commits of one call are answered together."""

    def commit(self, session: int, tokens: tuple[int, ...]) -> None:
        lifecycle = self._lifecycle
        before, lifecycle.effects = lifecycle.effects, []
        for token in tokens:
            super().commit(session, (token,))
            for save in [effect for effect in lifecycle.effects if isinstance(effect, StoreCommit)]:
                lifecycle.effects.remove(save)
                self.stored(save.batch.partition, [(save.batch.number, "", "")])
        answers = [effect for effect in lifecycle.effects if isinstance(effect, Answer)]
        others = [effect for effect in lifecycle.effects if not isinstance(effect, Answer)]
        committed = tuple(token for answer in answers for token in answer.committed)
        stale = tuple(token for answer in answers for token in answer.stale)
        lifecycle.effects = [*before, *others]
        if tokens:
            lifecycle.effects.append(Answer(session, committed, stale))
