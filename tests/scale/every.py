"""All measurements by name."""

from __future__ import annotations

from . import crowd, held, hosts
from .curve import Measure

__all__ = ["EVERY"]

EVERY = {
    "workers": Measure("1 and 2 workers that are in the way", crowd.workers, "30 s"),
    "servers": Measure("1, 2 and 4 servers with a fifth of a core each", hosts.servers, "1 min"),
    "owners": Measure("a trainer of 1 to 16 servers", hosts.owners, "1 min"),
    "sequences": Measure("1 to 100,000 sequences with states in flight", held.arrival, "2 min"),
    "lanes": Measure("10 to 10,000 lanes", held.lanes, "1 min"),
}
