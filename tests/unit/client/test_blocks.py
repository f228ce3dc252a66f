"""A block is the batch's bytes, wherever they lay, and its memory is reported once."""

import dataclasses
import functools
import gc
import os

import numpy as np
import pytest
import zmq

from headrace.batch_memory import Attachment, BatchGone, Blocks, Body, put_back
from headrace.session import MappedBatches
from headrace.trainer import Held
from headrace_proto.errors import ProtocolError
from headrace_proto.messages import Given

SEGMENT = "slab-0-1-0"
CONTENT = np.arange(100, dtype=np.uint8)


class Hands:
    """A maker of blocks, and how often it had a message to send."""

    def __init__(self):
        self.mapped = MappedBatches()
        self.woken = 0
        self.blocks = Blocks(self.wake)

    def wake(self):
        self.woken += 1

    def released(self):
        return self.mapped.to_say()


@pytest.fixture
def hands():
    return Hands()


@pytest.fixture
def memory(tmp_path):
    (tmp_path / SEGMENT).write_bytes(bytes(4096) + CONTENT.tobytes() + bytes(3996))
    (tmp_path / "trainer-1").write_bytes(os.urandom(64))
    return Attachment(str(tmp_path), str(tmp_path / "trainer-1"))


def held(source, nbytes=100, segment="", copy_out=False, mapped=None):
    given = Given(1, 11, 0, 0, 0, 0, 0, 1, nbytes, [], segment=segment, copy_out=copy_out)
    given = dataclasses.replace(given, offset=4096 if segment else 0, frame=0 if segment else 1)
    release = None if mapped is None else functools.partial(mapped.release, 11)
    return Held(given, Body(source, release), 1, 1)


def test_a_frame_is_copied_to_aligned_memory_that_may_be_written(hands):
    block = hands.blocks.block(held(zmq.Frame(CONTENT.tobytes())))
    assert np.array_equal(block, CONTENT) and block.flags.writeable
    assert block.__array_interface__["data"][0] % 64 == 0
    del block
    assert hands.released() == () and hands.woken == 0


def test_a_frame_of_another_length_is_a_protocol_error(hands):
    with pytest.raises(ProtocolError, match="a batch of 99 bytes came with 100"):
        hands.blocks.block(held(zmq.Frame(CONTENT.tobytes()), nbytes=99))


def test_a_reference_is_a_view_and_is_released_with_its_last_reader(hands, memory):
    block = hands.blocks.block(held(memory, segment=SEGMENT, mapped=hands.mapped))
    view = block[10:20]
    assert np.array_equal(block, CONTENT)
    del block
    gc.collect()
    assert hands.released() == ()
    del view
    assert hands.released() == (11,) and hands.woken == 0


def test_a_reference_into_a_slab_that_runs_low_is_copied_and_released_at_once(hands, memory):
    block = hands.blocks.block(held(memory, segment=SEGMENT, copy_out=True, mapped=hands.mapped))
    assert hands.released() == (11,) and hands.woken == 1
    assert np.array_equal(block, CONTENT)


def test_a_reference_to_removed_memory_is_distinguished_from_one_never_attached(
    hands, memory, tmp_path
):
    (tmp_path / SEGMENT).unlink()
    with pytest.raises(BatchGone):
        hands.blocks.block(held(memory, segment=SEGMENT, mapped=hands.mapped))
    with pytest.raises(ProtocolError, match="memory that was not attached"):
        hands.blocks.block(held(None, segment=SEGMENT))


def test_a_batch_that_nobody_has_read_is_reported_too(hands, memory):
    unread = held(memory, segment=SEGMENT, mapped=hands.mapped)
    assert hands.released() == ()
    del unread
    assert hands.released() == (11,)


def test_a_batch_that_was_put_back_has_the_same_block_when_it_is_taken_again(hands, memory):
    again = held(memory, segment=SEGMENT, mapped=hands.mapped)
    block = hands.blocks.block(again)
    block[0] = 7
    put_back(again, block)
    assert hands.blocks.block(again) is block and hands.released() == ()
