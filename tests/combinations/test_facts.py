"""Facts of rows go with their rows into batches of every form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from headrace_server.cli import exits, main
from tests.patience import PATIENCE_S

_EXAMPLES = [
    {"key": f"k{n}", "x": np.arange(3 + n % 4), "n": n, "y": n % 2, "w": 1 + n % 3}
    for n in range(40)
]
_SEGMENTS: dict[str, dict[str, Any]] = {
    "arrival": {},
    "lanes": {"order": "lanes"},
    "trainer": {"order": "lanes", "state_placement": "trainer"},
    "stateless": {"order": "lanes", "initial_states": {}},
    "windows": {"stride": 1, "left": 1, "right": 1},
}


def _segments(options: dict[str, Any]) -> hs.Pipeline:
    given = {"initial_states": {"s": hs.zeros((2,), "float32")}, **options}
    rows = hs.from_examples(_EXAMPLES).shuffle(seed=3).weighted_resample("w", 1.0, group=8)
    return (
        rows.stratified_sample("y", [0.4, 0.6])
        .with_origin()
        .batch_sequences_with_states(
            "key", ["x"], ["n", "y"], num_unroll=2, batch_size=4, make_keys_unique=True, **given
        )
    )


_FEEDS = {name: _segments(options) for name, options in _SEGMENTS.items()}
_FEEDS["saver"] = hs.SequenceQueueingStateSaver(
    4, 2, "x", "key", ["x"], ["n", "y"], {"s": hs.zeros((2,), "float32")}
)(
    hs.from_examples([{**one, "x": np.arange(4)} for one in _EXAMPLES])
    .stratified_sample("y", [0.4, 0.6])
    .weighted_resample("w", 0.7, group=8)
    .map("tests.combinations.functions:other_key", seed=1)
    .with_origin()
)


@pytest.fixture(scope="module")
def server() -> Iterator[hs.Server]:
    with hs.run(_FEEDS, workers=2) as running:
        yield running


def _numbers(tensor: Any) -> list[Any]:
    return list(np.asarray(tensor).tolist())


def _check(batch: Any) -> int:
    """Compare the facts of a batch with its context; return its number of rows with a segment."""
    valid, n = np.asarray(batch.valid), np.asarray(batch.context["n"])
    assert _numbers(batch.origin) == n.tolist()
    assert _numbers(batch.label) == _numbers(batch.context["y"])
    rates = np.asarray(batch.rate)
    assert rates.dtype == np.float32 and ((rates > 0) == valid).all()
    assert not np.asarray(batch.origin)[~valid].any()
    return int(valid.sum())


def _saved(batch: Any) -> None:
    for name in ("s",) if "s" in batch._layout.states else ():
        batch.save_state(name, batch.state(name))


@pytest.mark.parametrize("name", _FEEDS)
def test_each_segment_has_the_facts_of_its_example(server: hs.Server, name: str) -> None:
    with headrace.connect(server.address, feed=name, timeout=PATIENCE_S) as feed:
        assert {"label", "rate", "origin"} <= feed.facts.keys()
        seen = 0
        for batch in feed:
            seen += _check(batch)
            assert _numbers(batch.to("cpu").origin) == _numbers(batch.origin)
            _saved(batch)
        assert seen > 30


@pytest.mark.parametrize("order", ["arrival", "lanes"])
def test_empty_rows_of_ranks_have_facts_of_zero(order: str) -> None:
    with hs.run(_segments(_SEGMENTS[order]), workers=2) as server, ExitStack() as stack:
        ranks = [
            stack.enter_context(
                headrace.connect(
                    server.address, rank=r, world_size=2, prefetch=0, timeout=PATIENCE_S
                )
            )
            for r in (0, 1)
        ]
        rows = segments = 0
        for batches in zip(*ranks, strict=True):
            for batch in batches:
                segments, rows = segments + _check(batch), rows + batch.rows
                _saved(batch)
        assert rows > segments > 40


@pytest.mark.parametrize("framework", [pytest.param("tf", marks=pytest.mark.tf), "torch", "jax"])
def test_facts_are_tensors_of_the_framework(framework: str) -> None:
    pytest.importorskip({"tf": "tensorflow"}.get(framework, framework))
    with (
        hs.run(_FEEDS["arrival"]) as server,
        headrace.connect(server.address, framework=framework, timeout=PATIENCE_S) as feed,
    ):
        batch = next(feed)
        assert _check(batch) == 4 and type(batch.origin) is type(batch.length)
        _saved(batch)
        if framework == "tf":
            element = next(iter(feed.as_dataset()))
            assert _numbers(element["origin"]) == _numbers(element["context"]["n"])
            assert element["rate"].dtype.name == "float32"


def test_a_fact_that_no_stage_adds_is_an_error_with_the_reason(server: hs.Server) -> None:
    bare = hs.from_examples(_EXAMPLES).batch_sequences_with_states(
        "key", ["x"], [], None, {"s": hs.zeros((), "float32")}, num_unroll=2, batch_size=4
    )
    with hs.run(bare) as other, headrace.connect(other.address, timeout=PATIENCE_S) as feed:
        batch = next(feed)
        for name, why in (("label", "stratified"), ("rate", "weighted"), ("origin", "with_origin")):
            with pytest.raises(AttributeError, match=rf"batch\.{name}: .* none; .*{why}"):
                getattr(batch, name)


@pytest.mark.parametrize("command", ["check", "preview"])
def test_commands_refuse_what_a_trainer_refuses(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    """A fact that the protocol does not know makes a trainer raise, so the commands fail, too."""
    monkeypatch.setattr("headrace_proto.segment_layout.FACTS", {})
    feeds = tmp_path / "feeds.py"
    feeds.write_text("from tests.combinations.test_facts import _FEEDS\nfeed = _FEEDS['arrival']\n")
    assert main([command, f"{feeds}:feed"]) == exits.FAILED
    shown = capsys.readouterr()
    assert "strange column '@" in shown.out + shown.err
