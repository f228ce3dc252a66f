"""How long a test waits for what must come."""

from __future__ import annotations

#: Bounds every wait for an event.  A test that passes does not wait for it; a machine that is busy
#: with other work takes ten times as long as one that is not.
PATIENCE_S = 60.0
