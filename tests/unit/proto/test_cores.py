"""Cores that a process may use: its affinity, or less by a quota of a cgroup above it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace_proto.spin import cores

AFFINITY = float(len(os.sched_getaffinity(0)))


def told(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text + "\n")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "own"


def test_without_a_quota_it_is_the_affinity(tmp_path, own):
    assert cores(tmp_path / "nothing", own) == AFFINITY
    own.write_text("0::/a\n")
    told(tmp_path / "a", cpu__max="max 100000")
    assert cores(tmp_path, own) == AFFINITY


@pytest.mark.parametrize("where", ["", "pods", "pods/a"])
def test_the_smallest_quota_above_it_counts(where, tmp_path, own):
    own.write_text("0::/pods/a\n")
    told(tmp_path / "pods" / "a", cpu__max="max 100000")
    told(tmp_path / where, cpu__max="50000 100000")
    assert cores(tmp_path, own) == 0.5


def test_a_path_of_the_host_that_is_not_there_leaves_the_root(tmp_path, own):
    own.write_text("0::/docker/0123\n")
    told(tmp_path, cpu__max="50000 100000")
    assert cores(tmp_path, own) == 0.5


def test_an_unreadable_quota_counts_as_none(tmp_path, own):
    own.write_text("0::/\n")
    told(tmp_path, cpu__max="nonsense")
    assert cores(tmp_path, own) == AFFINITY
