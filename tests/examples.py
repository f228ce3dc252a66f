"""How properties are tried: with all examples in ``make test-long``, else with a third of them.

Outside of that the examples are the same each time, and no machine is too slow for one.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "full", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "quick", settings.get_profile("full"), max_examples=33, derandomize=True, database=None
)
settings.load_profile("quick")  # --hypothesis-profile=full comes after it


def some(all_of_them: int) -> int:
    """So many examples, or the share of them that the profile has."""
    share = settings.default
    assert share is not None
    return max(min(10, all_of_them), all_of_them * share.max_examples // 100)
