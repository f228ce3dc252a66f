"""Declared feeds, in all combinations, through ``hs.run`` and ``headrace.connect``."""
