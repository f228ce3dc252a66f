"""Which worker owns which partition: the one rule for servers and trainers.

    partition p of a server with n workers ─► worker p mod n

The number of workers moves partitions to other workers, and changes nothing else.
"""

from __future__ import annotations

__all__ = ["owner_of", "partitions_of"]


def owner_of(partition: int, owners: int) -> int:
    """Return the number of the worker that owns a partition."""
    return partition % owners


def partitions_of(owner: int, owners: int, partitions: int) -> range:
    """Return the partitions that a worker owns, of so many."""
    return range(owner, partitions, owners)
