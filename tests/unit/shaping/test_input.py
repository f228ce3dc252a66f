"""An input reads epoch after epoch, and ends where epochs bring nothing."""

import pytest

from headrace_server.shaping.bucket import PlainBatches
from headrace_server.shaping.input import Input, Rest
from headrace_server.shaping.plan import Read


@pytest.mark.parametrize("across", [True, False])
def test_a_feed_ends_after_many_empty_epochs_in_a_row_and_not_before(
    across: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace_server.shaping.input.HOPELESS_EPOCHS", 3)
    full = [0, 1, 2, 3, 6]
    machine = Input(PlainBatches(4), 0, None, across)
    epochs: dict[int, int] = {}  # by chunk
    found: list[int] = []
    for _ in range(100):
        step = machine.next_step(4)
        if step is None:
            break
        if step is Rest:
            machine.begin_epoch()
        elif isinstance(step, Read):
            epochs[step.chunk] = step.epoch
            machine.arrived(step, 4 * (step.epoch in full), None)
        else:
            found.append(epochs[step.parts[0].chunk])
            machine.forget_reads(machine.chunks())
    assert machine.next_step(4) is None, "it goes on for ever"
    assert found == full and machine.hopeless
