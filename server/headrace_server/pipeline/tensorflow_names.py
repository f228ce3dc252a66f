"""Hints for names that TensorFlow has and headrace has not: arguments, methods and functions.

    bucket(…, num_threads=4)       TypeError: bucket() has no argument num_threads: …
    batch(8, drop_remainder=True)  TypeError: batch() has no argument drop_remainder: …
    pipeline.prefetch(2)           AttributeError: a Pipeline has no .prefetch(): …
    saver.next_batch               AttributeError: a SequenceQueueingStateSaver has no …
    hs.bucket(…)                   AttributeError: module … has no attribute 'bucket': …

The names are those of tf.contrib.training and of tf.data.
"""

from __future__ import annotations

from collections.abc import Collection

from headrace_proto.errors import near

COLUMNS = "a batch holds all columns of the pipeline; .select(names) chooses among them"
_NAMES = "nothing is named in a graph; a feed has a name: hs.run({name: pipeline})"
_PROCESSES = "hs.run(workers=…, partitions=…) takes its place (--workers, --partitions)"
_SHAPES = "the schema says them: the features of the source, or map(…, schema=…)"
_QUEUE = "there is no such queue here"
_SHAPE = "batches have it: give it to the shape"
_PAD = "dynamic_pad=True pads to the largest of the batch, pad_to={column: size} to one size"
_STATIC = "every segment has num_unroll steps; batch.length counts the real ones"
_WHOLE = (
    "every sequence is a multiple of num_unroll long; batch_sequences_with_states(pad=True) pads"
)
_REST = "{}=True keeps the rows that remain at the end; by default they are dropped and counted"
_NO_REST = "{}=False drops the rows that remain at the end; by default they are kept"
#: The names of arguments that are called otherwise here; a hint where the call has the new one.
_RENAMED = {
    "accept_prob_fn": "accept_prob",
    "allow_small_batch": "allow_smaller_final_batch",
    "allow_smaller_final_batch": "allow_small_batch",
    "bucket_batch_sizes": "batch_size",
    "class_func": "labels",
    "compression_type": "compression",
    "count": "n",
    "element_length_func": "input_length",
    "filename": "directory",
    "filenames": "paths",
    "generator": "fn",
    "initial_dist": "init_probs",
    "key_func": "which_bucket",
    "length": "input_length",
    "map_func": "fn",
    "no_padding": "ragged",
    "output_signature": "features",
    "pad": "dynamic_pad",
    "pad_to_bucket_boundary": "pad_to_boundary",
    "predicate": "fn",
    "reshuffle_each_iteration": "reshuffle",
    "target_dist": "target_probs",
}
#: Other names of arguments; ``call.name`` is the argument of one call alone.
_ABSENT = {
    "tensors": COLUMNS,
    "inputs": COLUMNS,
    "num_threads": _PROCESSES,
    "threads_per_queue": _PROCESSES,
    "queue_threads": _PROCESSES,
    "prebatch_threads": _PROCESSES,
    "num_parallel_calls": _PROCESSES,
    "num_parallel_reads": _PROCESSES,
    "queue_capacity": _QUEUE,
    "prebatch_capacity": _QUEUE,
    "name": _NAMES,
    "scope": _NAMES,
    "shared_name": "trainers that connect to one feed share it; hs.run({name: pipeline}) names it",
    "shapes": _SHAPES,
    "tensor_shapes": _SHAPES,
    "output_shapes": _SHAPES,
    "output_types": _SHAPES,
    "enqueue_many": ".unbatch() before it makes an example of each row",
    "back_prop": "there is no graph to go back through",
    "runtime_checks": "values are always checked; a wrong one is a DataError",
    "dynamic_pad": _SHAPE,
    "ragged": _SHAPE,
    "capacity": "there is no queue to bound; slab_bytes of hs.run bounds the batches made ahead",
    "bucket_capacities": "only bucket and bucket_by_sequence_length have buckets",
    "seed": "nothing is drawn here; shuffle(seed=…) draws the order of the examples",
    "keep_input": "filter(fn) before it drops examples",
    "deterministic": "the seed and the number of partitions always determine the stream",
    **{
        f"{call}.drop_remainder": _REST.format("allow_smaller_final_batch")
        for call in (
            "batch",
            "bucket",
            "bucket_by_sequence_length",
            "rejection_sample",
            "stratified_sample",
        )
    },
    "batch_sequences_with_states.drop_remainder": _NO_REST.format("allow_small_batch"),
    "sequence_queueing_state_saver.drop_remainder": _REST.format("allow_small_batch"),
    "padded_shapes": _PAD,
    "padding_values": "padding is 0, False or an empty string",
    "buffer_size": "files are mapped or read ahead by themselves",
    "shuffle.buffer_size": (
        "the shuffle is exact, without a buffer; window=n mixes n adjacent examples of a source "
        "that can only be read forward"
    ),
    "batch_sequences_with_states.dynamic_pad": "pad=True pads sequences to whole segments",
    "batch_sequences_with_states.ragged": _STATIC,
    "sequence_queueing_state_saver.dynamic_pad": _WHOLE,
    "sequence_queueing_state_saver.pad": _WHOLE,
    "sequence_queueing_state_saver.ragged": _STATIC,
    **dict.fromkeys(
        (
            "sequence_queueing_state_saver.make_keys_unique",
            "sequence_queueing_state_saver.make_keys_unique_seed",
        ),
        "batch_sequences_with_states has it",
    ),
    **dict.fromkeys(
        (
            "stratified_sample_unknown_dist.allow_smaller_final_batch",
            "stratified_sample_unknown_dist.drop_remainder",
        ),
        "every batch is whole: it ends where a wanted class has ended",
    ),
}
#: Methods of a tf.data.Dataset.
_METHODS = {
    "as_numpy_iterator": "a server hands out its batches: hs.run(pipeline), headrace.connect(…)",
    "concatenate": ".concat(other)",
    "enumerate": "batches are numbered: batch.number",
    "group_by_window": ".bucket(which_bucket, batch_size, num_buckets)",
    "interleave": f".flat_map(fn) makes several examples of one; for speed, {_PROCESSES}",
    "padded_batch": ".batch(batch_size, dynamic_pad=True)",
    "prefetch": "workers make batches ahead, and headrace.connect(…, prefetch=n) fetches them",
    "ragged_batch": ".batch(batch_size, ragged=True)",
    "rejection_resample": ".stratified_sample(labels, target_probs)",
    "shard": "trainers share a feed; connect(rank=…, world_size=…) gives each its part",
    "window": "hs.read_tokens(…, window=n), or .batch_sequences_with_states(…)",
}
#: Members of a tf.contrib.training.SequenceQueueingStateSaver.
_SAVER = {
    "barrier": "feed.stats() counts ready and incomplete segments",
    "close": "feed.drain() closes the input",
    "name": "a feed has one, feed.name",
    "next_batch": "trainers get batches: with headrace.connect(…) as feed: for batch in feed",
    "prefetch_op": "workers insert examples by themselves",
}
#: Functions of tf.contrib.training that are methods here.
_FUNCTIONS = (
    "batch_sequences_with_states",
    "bucket",
    "bucket_by_sequence_length",
    "rejection_sample",
    "resample_at_rate",
    "stratified_sample",
    "stratified_sample_unknown_dist",
    "weighted_resample",
)


def absent_argument(call: str, name: str, known: Collection[str]) -> TypeError | None:
    """Return the error of an argument that a call has not; None where there is no hint."""
    hint = _ABSENT.get(f"{call}.{name}")
    if hint is None and _RENAMED.get(name) in known:
        hint = f"it is {_RENAMED[name]}"
    if hint is None and (hint := _ABSENT.get(name)) is None:
        like = near(name, known, least=0.75)
        return TypeError(f"{call}() has no argument {name}{like}") if like else None
    return TypeError(f"{call}() has no argument {name}: {hint}")


def absent_method(name: str) -> AttributeError:
    """Return the error of an attribute that a pipeline has not."""
    hint = _METHODS.get(name)
    if hint is None:
        return AttributeError(f"'Pipeline' object has no attribute {name!r}")
    return AttributeError(f"a Pipeline has no .{name}(): {hint}")


def absent_of_saver(name: str) -> AttributeError:
    """Return the error of an attribute that a SequenceQueueingStateSaver has not."""
    hint = f": {_SAVER[name]}" if name in _SAVER else ""
    return AttributeError(f"a SequenceQueueingStateSaver has no {name}{hint}")


def absent_of_module(module: str, name: str) -> AttributeError:
    """Return the error of an attribute that the module has not."""
    hint = f": a Pipeline has it, as hs.read_arrow(…).{name}(…)" if name in _FUNCTIONS else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}")
