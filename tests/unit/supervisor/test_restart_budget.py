"""A worker may die a few times within a window; a death that is explained does not count."""

from __future__ import annotations

from pathlib import Path

from headrace_server.supervisor.liveness import FORGIVEN, Patience, Post


def post(path: Path, number: int = 0) -> Post:
    return Post(number, path / f"diary-{number}", Patience(60.0, 120.0))


def test_deaths_are_forgiven_thrice_within_a_window(tmp_path: Path):
    budget, later = post(tmp_path, 0), post(tmp_path, 1)
    assert [budget.forgives(t) for t in (0.0, 30.0, 60.0, 60.0)] == [True, True, True, False]
    assert [later.forgives(t) for t in (0.0, 30.0, 60.0, 60.5, 90.5)] == [True] * 5


def test_a_death_that_is_explained_is_not_counted_nor_those_before_it(tmp_path: Path):
    budget = post(tmp_path)
    for _ in range(FORGIVEN):
        assert budget.forgives(1.0)
    budget.explain()
    assert budget.forgives(1.0)
