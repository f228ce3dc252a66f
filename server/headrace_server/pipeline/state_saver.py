"""``SequenceQueueingStateSaver``: a shape of segments under the name of TensorFlow's class.

saver = SequenceQueueingStateSaver(batch_size, num_unroll, …)     arguments are checked here
saver(pipeline)                                                   … and here against its columns
    = pipeline.sequence_queueing_state_saver(batch_size, num_unroll, …)
"""

from __future__ import annotations

import inspect
from typing import Any

from .argument_checks import check_kind
from .builder import Pipeline
from .declaration import Source
from .segmenting import Sequencing

_DECLARE = Sequencing.sequence_queueing_state_saver


class SequenceQueueingStateSaver:
    """Ends pipelines with ``sequence_queueing_state_saver(…)``, whose arguments it takes.

    ``saver(pipeline)`` is the pipeline with that shape.  The batches of its feed are
    ``headrace.NextQueuedSequenceBatch``.
    """

    __signature__ = inspect.signature(_DECLARE).replace(
        parameters=[*inspect.signature(_DECLARE).parameters.values()][1:], return_annotation=None
    )

    def __init__(self, *args: Any, **arguments: Any) -> None:
        # A source whose columns only reading shows: mistakes that need no column are found here.
        self._shown = _DECLARE(Pipeline(Source("arrow")), *args, **arguments)
        self._args, self._arguments = args, arguments

    def __call__(self, pipeline: Pipeline) -> Pipeline:
        """Return the pipeline with this shape at its end."""
        check_kind("pipeline", pipeline, Pipeline, "a Pipeline, such as read_tfrecord(…) gives")
        return pipeline.sequence_queueing_state_saver(*self._args, **self._arguments)

    def __repr__(self) -> str:
        call = repr(self._shown).partition("sequence_queueing_state_saver")[2]
        return f"SequenceQueueingStateSaver{call}"
