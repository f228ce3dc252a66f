"""Peers that parse by hand read the content of the files."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.bench import by_hand, records, sequences, workloads

from .w4 import small


def w1(directory: Path) -> Path:
    columns = workloads.w1_columns(2 * workloads.BATCH + 1)
    rows = zip(columns["label"].tolist(), columns["x"], columns["id"], strict=True)
    messages = (records.example({"id": name, "label": n, "x": x}) for n, x, name in rows)
    records.write(Path(workloads.w1_files(directory)[0]), messages)
    return directory


def test_a_batch_of_examples_is_stacked_and_whole_batches_begin_again(tmp_path: Path):
    source = by_hand.Stacked(w1(tmp_path))
    workloads.check_w1(source.batch(0))
    workloads.check_w1(source.batch(2))
    with pytest.raises(AssertionError, match="first batch"):
        workloads.check_w1(source.batch(1))


def test_sequences_are_bucketed_and_padded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = by_hand.Padded(small(tmp_path, monkeypatch))
    seen = []
    for number in range(20):
        sequences.check(batch := source.batch(number))
        seen += batch["key"].tolist()
    assert len(set(seen)) == 20 * sequences.BATCH


def test_a_source_that_has_read_can_be_sent_to_another_process(tmp_path: Path):
    source = by_hand.Stacked(w1(tmp_path))
    source.batch(0)
    workloads.check_w1(pickle.loads(pickle.dumps(source)).batch(0))  # noqa: S301


def test_images_are_whole_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workloads, "IMAGES", 4)
    monkeypatch.setattr(workloads, "IMAGE_BATCH", 2)
    images = np.arange(4 * 3, dtype=np.uint8).reshape(4, 3)
    np.save(workloads.w3_file(tmp_path), images)
    source = by_hand.Images(tmp_path)
    assert np.array_equal(source.batch(1)["image"], images[2:])
    assert np.array_equal(source.batch(2)["image"], images[:2])
