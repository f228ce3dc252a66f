"""A worker may die a few times within a window; a death that is explained does not count."""

from __future__ import annotations

from headrace_server.supervisor.posts import FORGIVEN, RestartBudget


def test_deaths_are_forgiven_thrice_within_a_window():
    budget, later = RestartBudget(), RestartBudget()
    assert [budget.forgives(t) for t in (0.0, 30.0, 60.0, 60.0)] == [True, True, True, False]
    assert [later.forgives(t) for t in (0.0, 30.0, 60.0, 60.5, 90.5)] == [True] * 5


def test_a_death_that_is_explained_is_not_counted_nor_those_before_it():
    budget = RestartBudget()
    for _ in range(FORGIVEN):
        assert budget.forgives(1.0)
    budget.explain()
    assert budget.forgives(1.0)
