"""headrace client: batches from a headrace server, as tensors.

import headrace

with headrace.connect("tcp://127.0.0.1:5557") as feed:
    for batch in feed:
        train(batch["x"])
"""

from headrace_proto import __version__
from headrace_proto.errors import (
    Cancelled,
    ConnectionLost,
    DataError,
    DeadlineExceeded,
    FeedClosed,
    FeedInUse,
    FeedRewound,
    FilesMissing,
    ForkedProcess,
    HeadraceError,
    LimitExceeded,
    NotAllowed,
    ProtocolError,
    ServerError,
    StaleLease,
    StateError,
    UnknownFeed,
    VersionMismatch,
)
from headrace_proto.schema import Field

from .batches.batch import Batch
from .batches.segments import SegmentBatch
from .connecting import connect
from .feed import Feed
from .produce import OpenSequence, Producer, produce

#: The name of TensorFlow's class.
NextQueuedSequenceBatch = SegmentBatch

__all__ = [
    "Batch",
    "Cancelled",
    "ConnectionLost",
    "DataError",
    "DeadlineExceeded",
    "Feed",
    "FeedClosed",
    "FeedInUse",
    "FeedRewound",
    "Field",
    "FilesMissing",
    "ForkedProcess",
    "HeadraceError",
    "LimitExceeded",
    "NextQueuedSequenceBatch",
    "NotAllowed",
    "OpenSequence",
    "Producer",
    "ProtocolError",
    "SegmentBatch",
    "ServerError",
    "StaleLease",
    "StateError",
    "UnknownFeed",
    "VersionMismatch",
    "__version__",
    "connect",
    "produce",
]
