"""How many examples a property is tried with: all in ``make test-long``, else a third."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("quick", max_examples=33)
settings.register_profile("full", max_examples=100)
settings.load_profile("quick")  # --hypothesis-profile=full comes after it


def some(all_of_them: int) -> int:
    """So many examples, or the share of them that the profile has."""
    share = settings.default
    assert share is not None
    return max(10, all_of_them * share.max_examples // 100)
