"""Which server and which worker own a partition: the one rule for servers and trainers.

    partition p of a feed on n servers      ─► server p mod n: its *share* is (p mod n, n)
    there, on a server with W workers       ─► worker (p div n) mod W

Servers of one feed may have different numbers of workers.  The numbers of servers and of workers
move partitions to other processes, and change nothing else.

A lease's token contains the term of the server's start that issued it.  Terms of share (i, n) are
those t with t mod n = i, so no two servers of a feed issue the same token.
"""

from __future__ import annotations

from .errors import kind_of

#: Number of a server among those of a feed, and how many there are.
Share = tuple[int, int]
#: The share of the only server of a feed.
WHOLE: Share = (0, 1)
#: Maximum number of servers: a server without a partition is refused, and a feed has at most 4096.
MOST_SHARES = 4096


def owner_of(partition: int, owners: int, share: Share = WHOLE) -> int:
    """Return the number of the worker that owns a partition of its server's share."""
    return partition // share[1] % owners


def partitions_of(owner: int, owners: int, partitions: int, share: Share = WHOLE) -> range:
    """Return the partitions that a worker of a server owns, out of ``partitions`` of the feed."""
    index, servers = share
    return range(index + servers * owner, partitions, servers * owners)


def next_term(after: int, share: Share = WHOLE) -> int:
    """Return the least term of a share beyond another term."""
    index, servers = share
    return after + 1 + (index - after - 1) % servers


def share_of(value: object) -> Share:
    """Return the share of a pair (i, n) or of a text "i/n"; TypeError or ValueError says why not.

    The error's text continues a sentence that names the value.
    """
    pair = value.split("/") if isinstance(value, str) else value
    if not isinstance(pair, (tuple, list)):
        raise TypeError(f'is not a share (i, n) or "i/n", but {kind_of(value)}')
    if isinstance(value, str):
        pair = [int(part) if part.isascii() and part.isdigit() else part for part in pair]
    if len(pair) != 2 or any(isinstance(n, bool) or not isinstance(n, int) for n in pair):
        raise ValueError('is not a share (i, n) or "i/n" of two whole numbers')
    index, servers = pair
    if not 1 <= servers <= MOST_SHARES:
        raise ValueError(
            f"names {servers} servers; their number must be between 1 and {MOST_SHARES}"
        )
    if not 0 <= index < servers:
        raise ValueError(f"is share {index}; those of {servers} servers are 0 to {servers - 1}")
    return index, servers
