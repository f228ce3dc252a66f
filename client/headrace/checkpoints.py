"""Snapshots that a trainer takes of its feed and resumes from: a part of ``Feed``.

feed.snapshot() ─► commits, settled ─► every server copies its stores ─► token
feed.load_state_dict(token) ─► the feed is left, and connected again from there
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import Any

from headrace_proto.errors import from_code
from headrace_proto.token import Token

from .committing import TakenBatches
from .epochs import EpochLoops
from .link import Link, opened
from .saving import Saving
from .segments import BY_STATES


class Checkpoints(EpochLoops):
    """The methods for snapshots that a ``Feed`` inherits."""

    _commits: TakenBatches
    _saving: Saving | None

    @abstractmethod
    def _say_commits(self) -> None: ...

    @abstractmethod
    def _leave(self, commit: bool) -> None: ...

    @abstractmethod
    def _begin(self, link: Link) -> None: ...

    def snapshot(self, upto: Any = None) -> dict[str, Any]:
        """Store the feed's state as it is after this step; return the token to go on from it.

        The batch in hand is committed first: call it after the step that used it.  With
        ``connect(commit="explicit")`` it commits nothing.

        ``upto`` is a batch, or its token: the call commits it and the batches that this trainer
        took before it, and no later one.

        The token is small and plain JSON data: keep it in the model's checkpoint, and give it to
        ``connect(resume=…)`` with that model.  Commits of other trainers meanwhile may be in
        the snapshot or not; batches in their hands go out again.
        """
        self._link.check_usable()
        _ = self.schema
        if self._saving is None:
            doubt = "" if upto is not None else self._commits.doubt()
            if doubt:
                warnings.warn(doubt, stacklevel=2)
            self._commits.for_snapshot(upto, self)
            self._say_commits()
        elif upto is not None:
            raise ValueError(f"snapshot(upto=…): {BY_STATES}; snapshot() has all saves")
        self._link.settle()
        if self._saving is not None:
            self._saving.flush()
        answer = self._link.snapshot()
        if answer.code:
            raise from_code(answer.code, answer.text)
        return dict(answer.value)

    def load_state_dict(self, state: Any) -> None:
        """Go on from a snapshot, as ``connect(resume=state)`` does.  Batches in hand go back."""
        token = Token.from_plain("state", state)
        self._link.check_usable()
        if token.feed != self.name:
            raise ValueError(f"state: a token of feed {token.feed!r}; this one is {self.name!r}")
        link = self._link
        self._leave(commit=False)
        self._begin(opened(link.again(token.snapshot)))

    #: The same under the names that torch and Lightning, and loops like those of Grain, call.
    state_dict = get_state = snapshot
    set_state = load_state_dict
