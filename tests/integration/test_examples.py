"""The examples of the documents run to their end, check their results, and write their pictures."""

from __future__ import annotations

import importlib.util
import json
import re
import struct
from pathlib import Path

import pytest

from tests.nursery import warm_run

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("buckets", "sampling", "resampling")
#: A picture of a page is fetched by everyone who clones; it is small.
_MOST_BYTES = 80_000


def _size_of_png(path: Path) -> tuple[int, int]:
    """Return width and height of a picture, whose file is complete."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def _printed(name: str, workplace: Path, *options: str | Path, needs: str = "matplotlib") -> str:
    """Return the output of an example, which must end well and write no file where it runs."""
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    workplace.mkdir()
    program = ROOT / "examples" / f"{name}.py"
    done = warm_run(program, *options, cwd=workplace, imports=[needs], serves=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(workplace.iterdir())
    return done.stdout


def _output_of(name: str, picture: Path) -> str:
    """Return the output of an example that writes a picture."""
    output = _printed(name, picture.parent / "workplace", "--out", picture)
    width, height = _size_of_png(picture)
    assert width > 500 and height > 200
    return output


@pytest.mark.slow
def test_buckets_pad_less_than_a_third_as_much_and_a_budget_bounds_every_batch(tmp_path):
    output = _output_of("buckets", tmp_path / "buckets.png")
    table = re.findall(r"^(\w+) +\d+ +\d+-\d+ +[\d,]+ +([\d.]+)% +([\d,]+) steps$", output, re.M)
    waste = {name: float(percent) for name, percent, _ in table}
    largest = {name: int(steps.replace(",", "")) for name, _, steps in table}
    assert list(waste) == ["batch", "buckets", "budget"]
    assert waste["buckets"] < waste["batch"] / 3
    assert waste["budget"] < waste["batch"] / 3
    assert largest["budget"] <= 4000 < largest["buckets"]
    assert len(re.findall(r"^ +[0-6] +[\d,]+ +[\d.]+%$", output, re.M)) == 7


@pytest.mark.slow
def test_sampling_reaches_the_target_and_the_one_that_is_set_while_it_runs(tmp_path):
    output = _output_of("sampling", tmp_path / "sampling.png")
    for name, wanted, tolerance in (
        ("source", (80, 15, 5), 4),
        ("stratified", (33, 33, 33, 20, 20, 60), 8),
        ("exact", (33, 33, 33, 20, 20, 60), 4),
    ):
        line = re.search(rf"^{name} .*$", output, re.M)
        assert line
        shares = [int(share) for share in re.findall(r"(\d+)%", line[0])]
        for share, target in zip(shares, wanted, strict=False):
            assert abs(share - target) <= tolerance, line[0]
        assert len(shares) == len(wanted) + 3  # and the recall of three classes


@pytest.mark.slow
def test_resampling_copies_by_weight_and_the_rate_takes_the_bias_out(tmp_path):
    output = _output_of("resampling", tmp_path / "resampling.png")
    table = re.findall(r"^ +[\d.]+ to +[\d.]+ +4000 +([\d.]+) +([\d.]+)$", output, re.M)
    assert len(table) == 5
    for copies, wanted in table:
        assert abs(float(copies) - float(wanted)) < 0.06
    told = re.search(
        r"mean of the source ([\d.]+)\n.* ([\d.]+); with 1 / rate ([\d.]+)$", output, re.M
    )
    assert told
    truth, plain, corrected = map(float, told.groups())
    assert plain - truth > 0.2
    assert abs(corrected - truth) < 0.02


@pytest.mark.tools
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "module"),
    [("tf", "tensorflow"), ("keras", "tensorflow"), ("torch", "torch"), ("jax", "jax")],
)
def test_a_recurrent_model_recalls_over_segments_what_it_can_only_know_by_its_state(
    name, module, tmp_path
):
    output = _printed(f"stateful_{name}", tmp_path / "workplace", needs=module)
    losses = [float(loss) for loss in re.findall(r"loss:? +([\d.e-]+)$", output, re.M)]
    assert len(losses) > 5 and losses[0] > 0.5, output
    end = re.search(r"^at the end ([\d.]+); guessing gives more than ([\d.]+)$", output, re.M)
    assert end, output
    assert float(end[1]) < float(end[2]) / 10


@pytest.mark.tools
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("temporal_detection", 0.2),
        ("sensor_days", 0.6),  # a reading is 0.09 noise
        ("token_recurrence", 0.1),
        ("streaming_speech", 0.5),
        ("replay_burn_in", 0.5),
    ],
)
def test_a_kit_learns_what_it_can_only_know_by_its_state_or_its_context(name, share, tmp_path):
    output = _printed(name, tmp_path / "workplace", needs="torch")
    loss = re.search(r"loss ([\d.]+) at first, ([\d.]+) at the end$", output, re.M)
    assert loss, output
    assert float(loss[2]) < share * float(loss[1])


@pytest.mark.tools
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "module"), [("tf", "tensorflow"), ("torch", "torch"), ("jax", "jax")]
)
def test_a_recurrent_model_has_the_losses_of_unpacked_lanes_in_packed_ones(name, module, tmp_path):
    """Step for step before training; after it, in fewer batches, both have learned the task."""
    output = _printed(f"packed_{name}", tmp_path / "workplace", needs=module)
    found = re.findall(r"packed: ([\d.]+) before, ([\d.]+) after (\d+) batches$", output, re.M)
    assert len(found) == 2, output
    (before, loss, batches), (packed_before, packed_loss, packed_batches) = found
    assert abs(float(before) - float(packed_before)) <= 2e-5
    assert max(float(loss), float(packed_loss)) < 0.058, output
    assert int(packed_batches) < 0.8 * int(batches)


def _played(name: str, needs: str = "matplotlib") -> str:
    """Return the output of a notebook, of which all cells run."""
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    notebook = ROOT / "examples" / f"{name}.ipynb"
    cells = json.loads(notebook.read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells)
    player = Path(__file__).parent / "notebook.py"
    done = warm_run(player, notebook, imports=[needs], serves=True, MPLBACKEND="agg")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.tools
@pytest.mark.slow
def test_the_notebook_on_lengths_shows_what_padding_costs():
    output = _played("lengths")
    waste = [float(percent) for percent in re.findall(r", ([\d.]+)% padding", output)]
    assert waste == sorted(waste, reverse=True) and waste[0] > 50 and waste[2] < 2
    assert output.split("\n")[-3:-1] == ["640 sequences", "2000 sequences"]


@pytest.mark.tools
@pytest.mark.slow
def test_the_notebook_on_states_learns_over_a_restart():
    output = _played("states", needs="tensorflow")
    loss = re.search(r"loss ([\d.]+) at first, ([\d.]+) at the end$", output, re.M)
    assert loss and float(loss[1]) > 0.5 and float(loss[2]) < 0.05, output


@pytest.mark.parametrize("name", NAMES)
def test_the_picture_of_a_page_is_there_is_shown_and_is_small(name):
    picture = ROOT / "docs" / "pictures" / f"{name}.png"
    width, height = _size_of_png(picture)
    assert width > 500 and height > 200
    assert picture.stat().st_size < _MOST_BYTES
    pages = [page.read_text() for page in (ROOT / "docs").glob("*.md")]
    (page,) = [page for page in pages if f"](pictures/{name}.png)" in page]
    assert f"](../examples/{name}.py)" in page
