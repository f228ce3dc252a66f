"""Functions of segments, beyond what the drawn combinations show: how often they are called, what
they may get and give, bad segments, memory, and functions that kill their worker."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.patience import eventually

from .serving import connect, fed, serving


def clips(count: int, frames: int = 6) -> hs.Pipeline:
    """Clips of frames that are compressed: each is the text of a number."""
    return hs.from_examples(
        [
            {"clip": f"c{i}", "frames": [f"{100 * i + k}" for k in range(frames)], "size": 1 + i}
            for i in range(count)
        ]
    )


def in_segments(source: hs.Pipeline, **options: Any) -> hs.Pipeline:
    given = {"initial_states": {"h": hs.zeros((1,))}, "num_unroll": 2, "batch_size": 2, **options}
    return source.batch_sequences_with_states("clip", ["frames"], ["size"], **given)


def train(feed: headrace.Feed) -> list[Any]:
    """Train to the end; return [key, segment, length, sequences] of each segment."""
    found = []
    for batch in feed:
        for row in range(batch.rows):
            sequences = {name: batch.sequences[name][row].tolist() for name in batch.sequences}
            which = bytes(batch.original_key[row]), int(batch.sequence[row])
            found.append([*which, int(batch.length[row]), sequences])
        batch.save_state("h", batch.state("h"))
    return found


def decoded(sequences: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
    """Decode the frames of a segment, each into an image; padding is black."""
    images = np.zeros((len(sequences["frames"]), 2, 2), np.uint16)
    for image, frame, real in zip(
        images, sequences["frames"], sequences["frames_mask"], strict=True
    ):
        if real:
            image[:] = int(frame) + int(context["size"])
    return {"images": images, "real": sequences["frames_mask"]}


def test_the_frames_of_a_segment_alone_are_decoded(tmp_path):
    calls = tmp_path / "calls"
    calls.touch()

    def noted(sequences: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
        with calls.open("a") as file:
            file.write(f"{len(sequences['frames'])}\n")
        return decoded(sequences, context)

    pipeline = in_segments(clips(4, 5), left=1, mask=True).map_segments(noted)
    with hs.run(pipeline, partitions=2, workers=2) as server, connect(server) as feed:
        assert feed.schema["sequences:images"].shape == (None, 3, 2, 2)
        assert "sequences:frames" not in feed.schema
        found = train(feed)
    assert len(found) == 12
    for key, segment, length, sequences in found:
        clip = int(key[1:])
        steps = range(2 * segment - 1, 2 * segment + 2)
        assert sequences["real"] == [0 <= step < 5 for step in steps]
        assert sum(sequences["real"]) == length + (segment > 0)
        want = [100 * clip + step + 1 + clip if 0 <= step < 5 else 0 for step in steps]
        assert [image[0][0] for image in sequences["images"]] == want
    # one more for each partition, whose schema the first segment shows
    assert calls.read_text().split() == ["3"] * (12 + 2)


def test_trainers_are_answered_while_a_batch_is_prepared_for_which_none_has_asked(tmp_path):
    """1. A trainer has its first batch: three calls, with the one that shows the schema.
    2. The fourth call, for the next batch, waits for the gate.
    3. The worker lets a trainer of another feed in, which gets batches that are made.
    4. The gate is opened, and the first one trains to the end.
    """
    calls, gate = tmp_path / "calls", tmp_path / "gate"
    calls.touch()

    def gated(sequences: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
        with calls.open("a") as file:
            file.write("c")
        while calls.stat().st_size > 3 and not gate.exists():
            time.sleep(0.01)
        return {"n": np.int64(int(sequences["frames"][0]))}

    plain = hs.from_examples([{"i": i} for i in range(9)]).batch(3)
    feeds = {"slow": in_segments(clips(6)).map_segments(gated), "plain": plain}
    with hs.run(feeds) as server, connect(server, feed="slow", prefetch=0) as slow:
        batch = next(slow)
        eventually(lambda: calls.stat().st_size == 4)
        with connect(server, feed="plain") as other:
            assert next(other)["i"].tolist() == [0, 1, 2]
        assert calls.stat().st_size == 4
        gate.touch()
        batch.save_state("h", batch.state("h"))
        assert len(train(slow)) == 18 - 2


def boxed(sequences: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
    """Give as many boxes as the number of the first frame says: 0 … 3."""
    number = int(sequences["frames"][0])
    return {"boxes": np.full((number % 4, 2), number), "names": [b"box"] * (number % 4)}


BOXES = {"boxes": hs.sequence("int64", (2,)), "names": hs.sequence("bytes")}


@pytest.mark.tf
def test_boxes_of_a_frame_are_padded_for_tensorflow():
    tf = pytest.importorskip("tensorflow")
    padding = {"padding_values": {"boxes": -1, "names": "none"}, "mask": True}
    frames = in_segments(clips(3, 4), num_unroll=1, batch_size=3, order="lanes", initial_states={})
    frames = frames.map_segments(boxed, schema=BOXES, **padding)
    with serving(frames) as server, connect(server, framework="tf") as feed:
        data = feed.as_dataset()
        assert data.element_spec["sequences"]["boxes"].shape == [None, None, 2]
        for count, element in enumerate(data):
            boxes, real = element["sequences"]["boxes"], element["sequences"]["boxes_mask"]
            assert real.shape == boxes.shape[:2] == (3, count) and bool(tf.reduce_all(real))
            assert element["sequences"]["names"].numpy().tolist() == [[b"box"] * count] * 3
        assert count == 3


def test_a_result_that_varies_is_padded_and_a_segment_that_does_not_fit_is_left_out():
    frames = in_segments(clips(2, 4), num_unroll=1, order="lanes", initial_states={})
    short = frames.map_segments(
        boxed, schema=BOXES, pad_to={"boxes": 2}, padding_values={"boxes": -1}
    )
    with fed(short.options(on_bad_example="skip")) as feed:
        found = [(b.sequences["boxes"].tolist(), b.sequences["names"].tolist()) for b in feed]
    none = [-1, -1]
    for number, (boxes, names) in enumerate(found[:3]):
        assert names == [[b"box"] * number] * 2
        row = [[0 + number] * 2] * number + [none] * (2 - number)
        assert boxes == [row, [[100 + number] * 2] * number + [none] * (2 - number)]
    assert found[3:] == [([[none] * 2] * 2, [[], []])]


def failing(sequences: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
    if sequences["frames"][0] == b"102":
        raise ValueError("no image")
    return {"number": np.int64(int(sequences["frames"][0]))}


def test_a_bad_segment_is_left_without_a_step():
    skips = in_segments(clips(3)).map_segments(failing).options(on_bad_example="skip")
    with serving(skips) as server:
        with connect(server) as feed:
            found = train(feed)
        assert server.stats()["default"]["dropped"] == {"bad:map_segments_failed": 1}
        assert server.pids.keys() >= {"worker-0-0"}
    assert len(found) == 9
    for key, segment, length, sequences in found:
        bad = (key, segment) == (b"c1", 1)
        number = 100 * int(key[1:]) + 2 * segment
        assert (length, sequences["number"]) == ((0, 0) if bad else (2, number))


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ({}, "segment 1 of 3: .* the second segment"),
        ({"on_bad_example": "skip", "max_bad_examples": 0}, "more than max_bad_examples=0"),
    ],
)
def test_a_segment_that_fails_while_its_batch_is_prepared_fails_when_it_is_wanted(
    tmp_path, policy, text
):
    """1. A trainer holds the first batch, so the worker prepares the second one.
    2. Its segment fails, and nothing happens.
    3. The trainer saves its states, and gets the error for the next batch.
    """

    def noted(sequences: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
        if sequences["frames"][0] == b"2":
            (tmp_path / f"call-{len(list(tmp_path.iterdir()))}").touch()
            raise ValueError("the second segment")
        return {"x": 1.5}

    pipeline = in_segments(clips(1), batch_size=1).map_segments(noted).options(**policy)
    with serving(pipeline) as server, connect(server, prefetch=1) as feed:
        batch = next(iter(feed))
        eventually(lambda: any(tmp_path.iterdir()))
        batch.save_state("h", batch.state("h"))
        with pytest.raises(headrace.DataError, match=text):
            next(iter(feed))
        assert "worker-0-0" in server.pids


def killing(sequences: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
    if sequences["frames"][0] == b"2":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"x": 0.5}


def test_a_segment_that_kills_its_worker_three_times_fails_its_feed_by_name():
    """The first time it does while its batch is prepared: the trainer holds the one before."""
    kills = in_segments(clips(1), batch_size=1).map_segments(killing)
    with serving({"kills": kills, "other": in_segments(clips(2))}) as server:
        with connect(server, feed="kills", prefetch=1) as feed:
            batch = next(iter(feed))
            eventually(lambda: "worker-0-1" in server.pids)
            batch.save_state("h", batch.state("h"))
            where = "record 0, key b'c0', segment 1 of 3"
            with pytest.raises(headrace.HeadraceError, match=f"{where}: its worker died 3 times"):
                next(iter(feed))
            eventually(lambda: "worker-0-3" in server.pids)
        with connect(server, feed="other") as feed:
            assert len(train(feed)) == 6
