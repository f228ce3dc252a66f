"""Every limit of the protocol.  A message that exceeds one is refused whole."""

from __future__ import annotations

#: The version of the protocol.
PROTOCOL = 11

#: Frame 0 of a message.  Descriptors of a batch of 1,000 columns fit well.
MAX_HEADER_BYTES = 64 * 1024
#: Entries of one array or map in a header.  Without a limit 1 MB of empty maps costs 65 MB to
#: decode.
MAX_HEADER_ITEMS = 4096
#: One text (characters) or byte string (bytes) in a header.
MAX_HEADER_STRING = 16 * 1024
#: Nesting of a header, itself included.  Six are needed: header, list of items, item, list of
#: columns, column, dims.
MAX_HEADER_DEPTH = 8
#: Frames of one message, the header included.
MAX_FRAMES = 1 + 256
#: Payload of one frame from a server to a trainer.
MAX_PAYLOAD_BYTES = 4 * 1024**3
#: Payload of one message from a trainer to a server.
MAX_UPLOAD_BYTES = 64 * 1024**2

#: Maximum number of prefetched batches, beyond the one that a trainer waits for or has.
MAX_PREFETCH = 63

#: Every number of a message: two of them added, or one and a step, fit 64 bits with a sign, which
#: msgpack, the journal and numpy keep.
MAX_COUNT = 2**62 - 1
#: Rows of a batch.  A worker adds those of all commits.
MAX_ROWS = 2**20
#: Ranks of a run, each of which has queues at every partition.
MAX_WORLD = 65_536

MAX_COLUMNS = 1024
MAX_RANK = 32
MAX_NAME = 256
