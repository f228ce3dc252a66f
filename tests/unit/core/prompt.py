"""A dispatcher whose workers store every commit in the moment in which it is made."""

from __future__ import annotations

from headrace_server.core.dispatch import Dispatcher
from headrace_server.core.handover import Answer, StoreCommit

__all__ = ["Prompt"]


class Prompt(Dispatcher):
    """All commits of one call are answered together."""

    def commit(self, session: int, tokens: tuple[int, ...]) -> None:
        hands = self._hands
        before, hands.effects = hands.effects, []
        for token in tokens:
            super().commit(session, (token,))
            for save in [effect for effect in hands.effects if isinstance(effect, StoreCommit)]:
                hands.effects.remove(save)
                self.kept(save.batch.partition, save.batch.number)
        answers = [effect for effect in hands.effects if isinstance(effect, Answer)]
        others = [effect for effect in hands.effects if not isinstance(effect, Answer)]
        committed = tuple(token for answer in answers for token in answer.committed)
        stale = tuple(token for answer in answers for token in answer.stale)
        hands.effects = [*before, *others]
        if tokens:
            hands.effects.append(Answer(session, committed, stale))
