"""A block is the batch's bytes, wherever they lay, and its memory is reported once."""

import gc
import os

import numpy as np
import pytest
import zmq

from headrace.batch_memory import Attachment
from headrace.blocks import BatchGone, Blocks
from headrace.session import Received, Session
from headrace_proto.errors import ProtocolError
from headrace_proto.messages import Delivery

SEGMENT = "slab-0-1-0"
CONTENT = np.arange(100, dtype=np.uint8)


class Hands:
    """A maker of blocks, and how often it had a message to send."""

    def __init__(self):
        self.session = Session("f", b"nonce", 2)
        self.woken = 0
        self.blocks = Blocks(self.wake)

    def wake(self):
        self.woken += 1

    def released(self):
        return self.session.mapped.to_say()


@pytest.fixture
def hands():
    return Hands()


@pytest.fixture
def memory(tmp_path):
    (tmp_path / SEGMENT).write_bytes(bytes(4096) + CONTENT.tobytes() + bytes(3996))
    (tmp_path / "trainer-1").write_bytes(os.urandom(64))
    return Attachment(str(tmp_path), str(tmp_path / "trainer-1"))


def received(source, nbytes=100, segment="", copy_out=False, mapped=None):
    place = (segment, 4096 if segment else 0, 0 if segment else 1)
    delivery = Delivery(1, 11, 0, 0, 1, nbytes, [], {}, *place, copy_out)
    return Received(delivery, source, mapped=mapped)


def test_a_frame_is_copied_to_aligned_memory_that_may_be_written(hands):
    block = hands.blocks.block(received(zmq.Frame(CONTENT.tobytes())))
    assert np.array_equal(block, CONTENT) and block.flags.writeable
    assert block.__array_interface__["data"][0] % 64 == 0
    del block
    assert hands.released() == () and hands.woken == 0


def test_a_frame_of_another_length_is_a_protocol_error(hands):
    with pytest.raises(ProtocolError, match="a batch of 99 bytes came with 100"):
        hands.blocks.block(received(zmq.Frame(CONTENT.tobytes()), nbytes=99))


def test_a_reference_is_a_view_and_is_released_with_its_last_reader(hands, memory):
    block = hands.blocks.block(received(memory, segment=SEGMENT, mapped=hands.session.mapped))
    view = block[10:20]
    assert np.array_equal(block, CONTENT)
    del block
    gc.collect()
    assert hands.released() == ()
    del view
    assert hands.released() == (11,) and hands.woken == 0


def test_a_reference_into_a_slab_that_runs_low_is_copied_and_released_at_once(hands, memory):
    block = hands.blocks.block(
        received(memory, segment=SEGMENT, copy_out=True, mapped=hands.session.mapped)
    )
    assert hands.released() == (11,) and hands.woken == 1
    assert np.array_equal(block, CONTENT)


def test_a_reference_to_removed_memory_is_distinguished_from_one_never_attached(
    hands, memory, tmp_path
):
    (tmp_path / SEGMENT).unlink()
    with pytest.raises(BatchGone):
        hands.blocks.block(received(memory, segment=SEGMENT, mapped=hands.session.mapped))
    with pytest.raises(ProtocolError, match="memory that was not attached"):
        hands.blocks.block(received(None, segment=SEGMENT))
