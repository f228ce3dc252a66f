"""When the partitions of a feed begin an epoch, and trainers are told: a layer of the dispatcher.

    partition ─► rests ─► all rest? ─► BeginEpoch ─► partition ─► begun ─┐
    batches of the epoch before ─► settled ──────────────────────────────┴─► EpochBegun ─► trainers

A trainer that waits then knows that no batch of an earlier epoch will come.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace_proto.messages import EpochBegun

from .dispatch_effects import BeginEpoch
from .dispatch_state import DispatchState


class EpochBorders(DispatchState):
    """The events of partitions at the border of an epoch."""

    def started(self, partition: int, number: int, turn: int = -1, epoch: int = 0) -> None:
        """Let a plain partition begin at the batch that an earlier server had reached.

        Batches of segments are numbered anew; ``number`` tells how many the earlier ones had made.
        """
        self._supply.start(partition, number, turn)
        if self._epochs is not None:
            self._epochs.begin(partition, epoch)
            self._begin(())

    def epoch_begun(self, partition: int, epoch: int, turn: int) -> None:
        """Note that a partition has made all batches before an epoch; ``turn``: the next one's."""
        self._supply.begin_epoch(partition, turn)
        if self._epochs is not None:
            self._epochs.begin(partition, epoch)
        self._begin(())

    def epoch_rests(self, partition: int, epoch: int) -> None:
        """Note that a partition has finished an epoch and rests at its border."""
        if self._epochs is not None:
            if self._supply.world:  # rounds already come in the order of epochs
                self._lifecycle.effects.append(BeginEpoch(partition))
            else:
                self._begin(self._epochs.rest(partition, epoch))

    def _end_epochs(self, partition: int) -> None:
        """Note that a partition has made its last batch, so others do not wait for its epoch."""
        if self._epochs is not None:
            self._begin(self._epochs.end(partition))

    def _begin(self, partitions: Sequence[int]) -> None:
        """Let partitions begin an epoch; those ahead of others get no requests."""
        self._changed = True
        if self._epochs is not None and self.segmented:
            for partition in partitions:
                self._supply.set_rests(partition, True)
            self._lifecycle.effects += map(BeginEpoch, partitions)
            for partition in self._of:
                self._supply.set_rests(partition, self._epochs.is_ahead(partition))

    def first_epoch(self, used: bool) -> int | None:
        """Return the epoch in which a trainer that joins begins; None if only a batch shows it.

        ``used``: whether a batch of the feed was ever committed.
        """
        if self._epochs is None:
            return None
        return self._epochs.first_open if used else 0

    @property
    def current_epoch(self) -> int | None:
        """The least epoch of which a batch may come; None where batches cross epochs."""
        return None if self._epochs is None else self._epochs.current

    def _tell_epoch(self) -> None:
        """Tell trainers which epoch has begun, once each."""
        if self._epochs is None:
            return
        current = self._epochs.current
        for trainer in self._trainers.present.values():
            if trainer.epoch < current:
                trainer.epoch, trainer.idle = current, False
                self._lifecycle.effects.append(EpochBegun(trainer.session, current))
