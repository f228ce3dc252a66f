"""The builder: a pipeline is declared by calls, each of which gives a new pipeline.

    read_…() ─► .skip .take .concat   fewer and more examples
             ─► .shuffle .repeat      the order, and how often      (each at most once)
             ─► .map .flat_map .unbatch .filter .select .with_origin     stages
             ─► .rejection_sample .stratified_sample .resample_at_rate .weighted_resample
             ─► .batch .bucket .batch_sequences_with_states …     the shape: exactly one, last
    .options() goes anywhere.  .declaration() is what a server is given.

Names, order and defaults of arguments are those of the TensorFlow functions, less those that named
graph nodes, sized queues of the graph, counted threads or declared shapes.

A mistake is a TypeError or ValueError of the call that makes it, and names argument, value and
limit.  Nothing is read, and no user code runs, until the pipeline is served.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

from headrace_proto.errors import DataError
from headrace_proto.schema import Field, schema_from_wire

from ..shaping.class_acceptance import acceptance, probabilities
from .argument_checks import (
    MASK,
    PaddingValues,
    PadTo,
    Value,
    check_kind,
    checked_names,
    checked_value,
    padded,
)
from .declaration import (
    SEQUENCES,
    Declaration,
    Feature,
    Options,
    Policy,
    ReadingOrder,
    Shape,
    Source,
    Stage,
    fields_text,
    grows,
    is_theirs,
    unbatched_field,
)
from .function_names import Sent, name_of
from .segment_options import block_name, segmented
from .signatures import checking

_SHAPES = (
    ".batch, .bucket, .bucket_by_sequence_length, .pack, .stratified_sample_unknown_dist, "
    ".batch_sequences_with_states, .sequence_queueing_state_saver, .shape, or a sampler with "
    "batch_size"
)
#: A user's function, or its name: "module:function" or "path.py:function".
Function = Callable[..., object] | str
#: Columns of a batch: their names, or by the names that they have in it.
Columns = Sequence[str] | Mapping[str, str]
#: Arguments that must be given, though one with a default stands before them.
_NEEDED: Any = ...
#: Counters of all classes go with every batch.
_MAX_CLASSES = 1000
#: The default of `balance_batches`.
_BALANCE_BATCHES = 16
#: Arguments of samplers that are those of ``batch``.
_BATCH_ARGUMENTS = (
    *("allow_smaller_final_batch", "dynamic_pad", "pad_to_multiple", "pad_to"),
    *("padding_values", "mask", "ragged"),
)
#: Examples of one draw of a vectorized map with a seed: enough for whole arrays to pay.
_DRAWN_AT_ONCE = 256
#: Bytes of a block: so many take longer than the round trip of their request.
BLOCK_BYTES = 1 << 22
_IN_ORDER = ReadingOrder()
_STRICT = Policy()


@dataclass(frozen=True, repr=False)
class Pipeline:
    """A declared pipeline, complete or not. Immutable: every call returns another one.

    Made by ``read_tfrecord`` and its like.  Pipelines that declare the same are equal.
    """

    _source: Source
    _order: ReadingOrder = _IN_ORDER
    _stages: tuple[Stage, ...] = ()
    _shape: Shape | None = None
    _policy: Policy = _STRICT
    _repeated: bool = False
    _calls: tuple[str, ...] = field(default=(), compare=False)  # that declare it, as text

    @property
    def fields(self) -> dict[str, Field] | None:
        """The schema of an example; None where it is known only after reading."""
        known = self._source.fields
        for stage in self._stages:
            known = stage.made().fields_after(known)
        return None if known is None else dict(known)

    # Examples of the source, before order and stages: so they mean the same for any number
    # of partitions

    @checking
    def take(self, n: int) -> Pipeline:
        """Read the first ``n`` examples of the source, or all where it has fewer.

        All partitions together read ``n`` examples in every epoch, the first in the order of the
        source (file by file where it can only be read forward).  Call it before ``shuffle``, and
        before stages that change the number of examples.
        """
        self._at_source("take")
        return self._of("cut", self._source, start=0, stop=n)

    @checking
    def skip(self, n: int) -> Pipeline:
        """Leave out the first ``n`` examples of the source, as ``take`` counts them.

        A source that can be read by number does not read them; of another each process reads them
        once.
        """
        self._at_source("skip")
        return self._of("cut", self._source, start=n, stop=None) if n else self

    @checking
    def concat(self, other: Pipeline) -> Pipeline:
        """Read the examples of another source after those of this one.

        Both have the same columns, which ``map`` and ``select`` of each may make.  A shuffle mixes
        the examples of both where both can be read by number.
        """
        self._at_source("concat")
        check_kind("other", other, Pipeline, "a pipeline without a shape")
        if other._source.logs:
            other._at_source("concat")
        if other._repeated or other._order != _IN_ORDER:
            raise ValueError("concat(other): other has an order; call it on the result of concat")
        parts = self._as_part("concat", "the source"), other._as_part("concat", "other")
        check_alike("concat", {"the source": self, "other": other})
        return replace(self._of("concat", *parts), _stages=())

    def _as_part(self, of: str, what: str) -> Source:
        """Return what a mix or ``concat`` reads: the source, with stages that go with it."""
        later = self._shape.kind if self._shape else "options" * (self._policy != _STRICT)
        if later:
            raise ValueError(
                f"{what} of {of} has .{later}(): call it on the result of {of}, for the examples "
                "of all sources"
            )
        for stage, made in ((stage, stage.made()) for stage in self._stages):
            if not made.goes_with_source:
                raise ValueError(
                    f"{what} of {of} has .{stage.kind}(): its own stages make one row of each "
                    "example, the same in every epoch, as .map without seed= and .select do; call "
                    f"the others on the result of {of}, for the examples of all sources"
                )
        if not self._stages:
            return self._source
        stages = [{"kind": stage.kind, "options": dict(stage.options)} for stage in self._stages]
        return self._of("staged", self._source, stages=stages)._source

    def _at_source(self, method: str) -> None:
        if self._source.logs:
            raise ValueError(
                f".{method}() counts examples of the source over all partitions, and those of a "
                "log (hs.live) have no such order: select them by .filter(), or mix sources by "
                "hs.mix()"
            )
        ordered = "shuffle" if self._order != _IN_ORDER else ""
        counted = (str(s.kind) for s in self._stages if s.kind == "mix" or not s.made().keeps_count)
        earlier = next(counted, "") or ("repeat" if self._repeated else ordered)
        if earlier:
            raise ValueError(
                f".{method}() comes after .{earlier}(): it counts examples in the order of the "
                f"source; call .{method}() before it"
            )

    def _of(self, kind: str, *sources: Source, **options: object) -> Pipeline:
        """Return the pipeline with a source made of others."""
        paths = tuple(path for source in sources for path in source.paths)
        return replace(self, _source=Source(kind, paths, None, {**options, "sources": sources}))

    # Order

    @checking
    def shuffle(
        self,
        seed: int = 0,
        window: int | None = None,
        reshuffle: bool = True,
        *,
        blocks: int | None = None,
        block_bytes: int | None = None,
    ) -> Pipeline:
        """Go through the examples of the source in an order drawn from ``seed``.

        Exact: every order is as likely as any other, at no cost of memory.  ``reshuffle`` gives
        each epoch another order.  The source's examples are shuffled before all stages, also if
        this is called after some of them.

        With ``blocks`` each epoch goes through the blocks of the files in another order and mixes
        the rows of so many blocks at a time, so each block is read once: for files in a store.  A
        block is a row group of Parquet, a record batch of Arrow, or adjacent examples of
        ``block_bytes`` together (default: 4 MiB).  A partition has the same blocks in each epoch.

        Sources that can only be read forward, such as compressed files, need ``window``: then each
        run of ``window`` adjacent examples is mixed.
        """
        if self._source.kind == "mix":
            raise ValueError(
                "shuffle() after mix() has no order to draw: shuffle each source, as in "
                "hs.mix({'web': web.shuffle(seed=1), …}, …); the mix draws from them at random"
            )
        if self._order.seed is not None:
            raise ValueError("shuffle() is called twice: an order is drawn once")
        if self._repeated:
            raise ValueError(
                "shuffle() after repeat() would mix the examples of different epochs: call "
                "shuffle() before repeat(); reshuffle=True gives each epoch another order"
            )
        if window is not None and blocks is not None:
            raise ValueError(
                f"window={window} and blocks={blocks}: adjacent examples are mixed, or blocks of "
                "them; give one of the two"
            )
        if block_bytes is not None and blocks is None:
            raise ValueError(
                f"block_bytes={block_bytes}: without blocks= there are no blocks; give the number "
                "of blocks that are mixed"
            )
        if window is None and any(leaf.made.forward for leaf in self._source.leaves):
            wrong = "window=None" if blocks is None else f"blocks={blocks}"
            raise ValueError(
                f"{wrong}: from_function and live can only be read forward; give window=, the "
                "number of adjacent examples that are mixed, or use from_indexed for what has a "
                "length"
            )
        if blocks is not None:
            block_bytes = block_bytes or BLOCK_BYTES
        order = replace(
            self._order,
            seed=seed,
            window=window,
            reshuffle=reshuffle,
            blocks=blocks,
            block_bytes=block_bytes,
        )
        return replace(self, _order=order)

    @checking
    def repeat(self, n: int | None = None, across_batches: bool = True) -> Pipeline:
        """Go through the source ``n`` times, or for ever: in ``n`` epochs.

        A batch may hold the end of one epoch and the beginning of the next.  With
        ``across_batches=False`` each epoch ends as the feed does: its last batches are smaller, or
        its last rows dropped and counted, as the shape says; examples of a feed of segments end
        before those of the next epoch begin.  ``feed.epochs()`` then gives a trainer one epoch
        after the other, and a ``for`` over the feed is one epoch.
        """
        if self._repeated:
            raise ValueError("repeat() is called twice: give the product of both counts once")
        if self._source.logs and n != 1:
            raise ValueError(
                f"repeat(n={n}): a log (hs.live) is gone through once, since what all feeds have "
                "trained is deleted; leave repeat() out"
            )
        order = replace(self._order, epochs=n, across_batches=across_batches)
        return replace(self, _order=order, _repeated=True)

    # Stages that judge each example by itself

    @checking
    def map(
        self,
        fn: Function,
        *,
        vectorized: bool = False,
        schema: Mapping[str, Feature | Field] | None = None,
        seed: int | None = None,
    ) -> Pipeline:
        """Replace every example by the result of a function.

        ``fn`` gets an example as a dict of column to numpy scalar, array or bytes, and returns such
        a dict.  The arrays it gets are read-only views: copy an array before changing it in place.

        With ``vectorized=True`` it gets the columns of some hundred examples at once, and returns
        as many rows: arrays ``[n, …]``, object arrays of bytes, and where shapes vary ``Ragged`` of
        ``headrace_server.reading.columns``.

        ``schema`` declares the columns of the result.  Without it the first examples determine
        them: a dimension varies if it differs among those, or if it varied before in a column of
        the same name, dtype and rank.  A later example that does not fit is a DataError.

        With ``seed`` the call is ``fn(example, rng)``.  ``rng`` is a ``numpy.random.Generator`` of
        this example, stage and epoch alone: each epoch draws anew, and a resume draws the
        same again, for any number of workers and partitions.  With ``vectorized=True`` there is
        one for each 256 examples that a partition reads, counted from its first (or for each
        ``group`` of a weighted resampling), so the partitions must stay the same.
        """
        options = {"vectorized": vectorized, "schema": schema, "seed": seed}
        return self._with_stage("map", function=name_of(fn), **options)

    @checking
    def flat_map(
        self,
        fn: Function,
        *,
        schema: Mapping[str, Feature | Field] | None = None,
        seed: int | None = None,
    ) -> Pipeline:
        """Replace every example by those that a function returns for it: none, one or several.

        ``fn`` gets the same as that of ``map``, and returns a list of such dicts or yields them, at
        most 2**20.  They stay together, in their order, and errors name the example that they come
        from.  Examples without any are counted as ``no_output``.  ``schema`` and ``seed`` are those
        of ``map``; the outputs of one example share its ``rng``.
        """
        return self._with_stage("flat_map", function=name_of(fn), schema=schema, seed=seed)

    @checking
    def unbatch(self) -> Pipeline:
        """Make an example of each row of examples that have a batch dimension.

        Every column has that dimension, of the same length in an example.  A row's outputs keep the
        order; an example of no row is counted as ``no_output``.
        """
        for name, batched in (self.fields or {}).items():
            unbatched_field(name, batched)
        return self._with_stage("unbatch")

    @checking
    def filter(self, fn: Function, *, columns: Iterable[str] | None = None) -> Pipeline:
        """Keep the examples for which a function returns True. Those dropped are counted.

        ``fn`` gets the same as that of ``map``, or only these ``columns`` of it, and returns a
        bool.  Behind ``live`` a filter whose ``columns`` are of the context lets segments be cut of
        sequences that still grow.
        """
        read = (
            {} if columns is None else {"columns": checked_names("columns", columns, self.fields)}
        )
        return self._with_stage("filter", function=name_of(fn), **read)

    @checking
    def select(self, names: Iterable[str]) -> Pipeline:
        """Keep these columns, in this order."""
        return self._with_stage("select", names=checked_names("names", names, self.fields))

    @checking
    def with_origin(self) -> Pipeline:
        """Give each row ``batch.origin``, the ordinal of its example in the source (int64).

        The source is what the pipeline reads before ``shuffle`` and all stages: ``take`` and
        ``skip`` count anew, ``concat`` counts on.  All rows that ``flat_map``, ``unbatch`` and
        resampling make of one example have its ordinal, wherever this is called among the stages,
        and each epoch has the same ones.  A source that is read forward has the number of the
        stream (file or shard) times 2**40 plus the ordinal in it, and bad records count.
        """
        return self._with_stage("with_origin")

    @checking
    def stage(self, stage: type | str, /, **options: object) -> Pipeline:
        """Add a stage of your own: a subclass of ``hs.Stage``.

        Give the class, or its name "module:Class".  ``Class(**options)`` is made here, which
        refuses bad options, and once for each partition; options are plain data.  See
        docs/pipelines.md.
        """
        pipeline = self._with_stage(name_of(stage, "stage"), **options)
        pipeline.fields  # noqa: B018 - the class refuses its options, and columns that it lacks
        return pipeline

    # Stages that change how often examples come; with a ``batch_size`` they end the pipeline

    @checking
    def rejection_sample(
        self,
        accept_prob: Value,
        batch_size: int | None = None,
        enqueue_many: bool = False,
        *,
        seed: int = 0,
        allow_smaller_final_batch: bool = False,
        dynamic_pad: bool = False,
        pad_to_multiple: int | None = None,
        pad_to: PadTo | None = None,
        padding_values: PaddingValues | None = None,
        mask: bool = False,
        ragged: bool = False,
    ) -> Pipeline:
        """Keep each example with the probability that a column, a function or a number gives.

        A bool counts as 1 or 0.  A number outside 0 … 1 is a DataError.  With ``enqueue_many`` each
        example has a batch dimension, ``accept_prob`` too, and its rows are judged one by one, as
        after ``.unbatch()``.  The arguments after ``seed`` are those of ``batch``.
        """
        pipeline = self.unbatch() if enqueue_many else self
        pipeline = pipeline._with_stage(
            "rejection_sample",
            accept_prob=checked_value("accept_prob", accept_prob, pipeline.fields, constant=(0, 1)),
            seed=seed,
        )
        return pipeline._in_batches(vars())

    @checking
    def stratified_sample(
        self,
        labels: Value,
        target_probs: Sequence[float],
        batch_size: int | None = None,
        init_probs: Sequence[float] | None = None,
        enqueue_many: bool = False,
        *,
        seed: int = 0,
        allow_smaller_final_batch: bool = False,
        dynamic_pad: bool = False,
        pad_to_multiple: int | None = None,
        pad_to: PadTo | None = None,
        padding_values: PaddingValues | None = None,
        mask: bool = False,
        ragged: bool = False,
    ) -> Pipeline:
        """Drop examples so that classes come in the proportions of ``target_probs``.

        ``labels`` gives each example's class, 0 … K-1.  ``init_probs`` are the proportions of the
        source; without them they are estimated from the examples so far, including the one at hand.
        As few examples as possible are dropped.  ``batch.label`` holds the classes.  With
        ``enqueue_many`` each example has a batch dimension, ``labels`` too, and its rows are judged
        one by one, as after ``.unbatch()``.  The arguments after ``seed`` are those of ``batch``.
        """
        pipeline = self.unbatch() if enqueue_many else self
        target, init = _mix("target_probs", target_probs), None
        if init_probs is not None:
            acceptance(init_probs, target)  # refuses proportions that can not be reached
            init = probabilities("init_probs", init_probs).tolist()
        pipeline = pipeline._with_stage(
            "stratified_sample",
            labels=checked_value("labels", labels, pipeline.fields, integer=True),
            target_probs=target,
            init_probs=init,
            seed=seed,
        )
        return pipeline._in_batches(vars())

    def _in_batches(self, given: Options) -> Pipeline:
        """Return the pipeline, ended in batches where a sampler's arguments have their size."""
        options = {name: given[name] for name in _BATCH_ARGUMENTS}
        if given["batch_size"] is not None:
            return self.batch(given["batch_size"], **options)
        for name, value in options.items():
            if value is not None and value is not False:
                raise ValueError(
                    f"{name}={value!r:.80} is an argument of batches: give batch_size, or give it "
                    "to the shape that follows"
                )
        return self

    @checking
    def resample_at_rate(self, rates: Value, *, seed: int | None = None) -> Pipeline:
        """Repeat each example a Poisson number of times, with the mean that ``rates`` gives it.

        Copies follow each other.  A rate that is negative, or above 2**52, is a DataError.  No
        ``seed`` is seed 0.
        """
        return self._with_stage("resample_at_rate", rates=rates, seed=0 if seed is None else seed)

    @checking
    def weighted_resample(
        self,
        weights: Value,
        overall_rate: float,
        mean_decay: float = 0.999,
        warmup: int | None = 10,
        *,
        seed: int | None = None,
        group: int | None = None,
    ) -> Pipeline:
        """Repeat examples in proportion to their weights, ``overall_rate`` times on the average.

        The rate of an example is its weight times ``overall_rate`` over the running mean of
        weights; ``batch.rate`` holds it, so a loss can be weighted by 1 / rate.  The mean moves
        once for every ``group`` examples of the source (default: the batch size, and 32 where a
        budget alone ends batches) and includes them.
        ``warmup`` groups weigh the same before the mean forgets by ``mean_decay``; with
        ``warmup=None`` it forgets from the start and is corrected for that.  No ``seed`` is seed 0.
        """
        if warmup is None and mean_decay == 1:
            raise ValueError("mean_decay=1 needs warmup: a mean that never moves is never learnt")
        return self._with_stage(
            "weighted_resample",
            weights=weights,
            overall_rate=overall_rate,
            mean_decay=mean_decay,
            warmup=warmup,
            seed=0 if seed is None else seed,
            group=group,
        )

    # Shapes

    @checking
    def batch(
        self,
        batch_size: int,
        allow_smaller_final_batch: bool = False,
        dynamic_pad: bool = False,
        *,
        pad_to_multiple: int | None = None,
        pad_to: PadTo | None = None,
        padding_values: PaddingValues | None = None,
        mask: bool = False,
        ragged: bool = False,
        balance: Value | None = None,
        balance_batches: int = _BALANCE_BATCHES,
    ) -> Pipeline:
        """Return batches of ``batch_size`` examples, in their order.

        ``dynamic_pad`` pads dimensions that vary to the largest in the batch; without it, rows of
        unequal shapes in one batch are a DataError.  Rows that remain at the end are one smaller
        batch if ``allow_smaller_final_batch``, else they are dropped and counted.

        With ``pad_to_multiple`` dimensions that vary are padded up to a multiple.  ``pad_to`` names
        columns and the size of their first dimension (or of several), the same in every batch; a
        longer example is a DataError.

        ``padding_values`` gives columns a value for padding in place of 0, False or the empty
        string.  With ``mask`` a batch has ``NAME_mask`` for each padded column, bool, True where
        that has real elements.

        With ``ragged`` columns whose first dimension varies are not padded: a batch has the values
        of all rows one after the other, with their offsets.

        ``balance`` gives the cost of an example, such as its length: a column, a sequence whose
        length counts, or a function.  The examples of ``balance_batches`` batches are then gathered
        and put into these batches so that all cost nearly the same, those of one round of ranks
        too.
        """
        return self._with_shape("batch", vars())

    @checking
    def bucket(
        self,
        which_bucket: Value,
        batch_size: int | Sequence[int] | None,
        num_buckets: int,
        capacity: int = 32,
        bucket_capacities: Sequence[int] | None = None,
        dynamic_pad: bool = False,
        allow_smaller_final_batch: bool = False,
        keep_input: Value | None = True,
        *,
        input_length: Value | None = None,
        max_padded_elements: int | None = None,
        max_examples_in_flight: int | None = None,
        cost: Value | None = None,
        pad_to_multiple: int | None = None,
        pad_to: PadTo | None = None,
        padding_values: PaddingValues | None = None,
        mask: bool = False,
        ragged: bool = False,
        balance: Value | None = None,
        balance_batches: int = _BALANCE_BATCHES,
        shuffle_batches: int | None = None,
        shuffle_seed: int | None = None,
    ) -> Pipeline:
        """Return batches of examples of one bucket each, whose number is ``batch.bucket``.

        ``which_bucket`` gives 0 … ``num_buckets``-1 for each example; another number is a
        DataError.  Examples for which ``keep_input`` is not true are dropped before, and counted.
        Inside a bucket the order stays; batches come in the order in which they became full; with
        ``allow_smaller_final_batch`` the remaining rows come at the end, by ascending bucket.

        ``batch_size`` is one for all or one per bucket.  With ``max_padded_elements`` and
        ``input_length`` a batch is also full when its longest length times its rows would exceed
        that budget; ``batch_size=None`` leaves it to the budget alone.  ``cost`` (a column or a
        function) replaces the length there: with the square of the length it is a budget for
        attention.

        The arguments from ``pad_to_multiple`` on are those of ``batch``; each bucket balances its
        own batches.  A budget of lengths counts what is padded so; of ragged rows it is the sum of
        their lengths.

        With ``shuffle_batches`` the buckets of so many batches at a time come in an order drawn
        from ``shuffle_seed`` (None: 0), so that neighbours differ in length also where the data is
        ordered.  Batches of one bucket keep their order.  A partition then holds the rows of so
        many batches.

        A partition makes ``capacity`` batches ahead of the trainers, at most 64 MiB of them (2 MiB
        for each batch of a capacity beyond 32).  Beside the batch that it gathers, a bucket holds
        at most its number of ``bucket_capacities`` rows; a partition holds at most
        ``max_examples_in_flight`` rows that are in no batch.
        """
        return self._bucketed(vars())

    @checking
    def bucket_by_sequence_length(
        self,
        input_length: Value,
        batch_size: int | Sequence[int] | None,
        bucket_boundaries: Sequence[int] | None = None,
        capacity: int = 32,
        bucket_capacities: Sequence[int] | None = None,
        dynamic_pad: bool = False,
        allow_smaller_final_batch: bool = False,
        keep_input: Value | None = True,
        *,
        max_padded_elements: int | None = None,
        max_examples_in_flight: int | None = None,
        cost: Value | None = None,
        pad_to_multiple: int | None = None,
        pad_to_boundary: bool = False,
        pad_to: PadTo | None = None,
        padding_values: PaddingValues | None = None,
        mask: bool = False,
        ragged: bool = False,
        balance: Value | None = None,
        balance_batches: int = _BALANCE_BATCHES,
        shuffle_batches: int | None = None,
        shuffle_seed: int | None = None,
        num_buckets: int | None = None,
    ) -> Pipeline:
        """Return batches of examples of similar length; ``batch.length`` holds the lengths.

        ``input_length`` is a column of integers, a sequence whose length counts, or a function.
        Bucket 0 takes lengths below the first boundary, bucket k those from boundary k-1 to below
        boundary k, the last one the rest.  All else is as in ``bucket``.

        With ``num_buckets`` in place of ``bucket_boundaries`` a sample of about a thousand
        examples, evenly over the source, gives boundaries: each bucket has about equally many.
        They depend on the data and the declaration alone, and ``headrace check`` shows them.

        With ``pad_to_boundary`` batches are padded to the upper boundary of their bucket, so each
        bucket has one shape; those of the last one are padded to their longest.
        """
        return self._bucketed(vars())

    def _bucketed(self, given: dict[str, Any]) -> Pipeline:
        """Return the pipeline with a shape of buckets, declared by the arguments of either call."""
        kept = self._kept(given.pop("keep_input"))
        count, boundaries = given.pop("num_buckets"), given.pop("bucket_boundaries", None)
        sampled = "which_bucket" not in given and count is not None
        if sampled and boundaries is not None:
            raise ValueError(
                f"num_buckets={count} and bucket_boundaries={boundaries}: the number is for "
                "boundaries from a sample of lengths; give one of them"
            )
        if sampled and count < 2:
            raise ValueError(f"num_buckets={count}: one bucket is .batch; give 2 or more")
        if sampled and self._source.logs:
            raise ValueError(
                f"num_buckets={count} needs a sample of lengths, and a log (hs.live) has none yet: "
                "give bucket_boundaries"
            )
        if count is None:
            count = len(_ascending(boundaries)) + 1
        given["boundaries"] = boundaries
        if given["shuffle_batches"] is None:
            if given["shuffle_seed"] is not None:
                raise ValueError(f"shuffle_seed={given['shuffle_seed']} needs shuffle_batches=")
            del given["shuffle_batches"], given["shuffle_seed"]
        else:
            given["shuffle_seed"] = given["shuffle_seed"] or 0
        budget, most = given["max_padded_elements"], given["max_examples_in_flight"]
        given["bucket"] = given.pop("which_bucket", None)
        given["length"] = given.pop("input_length")
        size = given.pop("batch_size")
        if size is None and budget is None:
            raise ValueError(
                "batch_size=None needs max_padded_elements: something must fill a batch"
            )
        sizes = given["batch_sizes"] = size if isinstance(size, list) else [size] * count
        per_bucket = {"batch_size": sizes, "bucket_capacities": given["bucket_capacities"]}
        for name, listed in per_bucket.items():
            if listed is not None and len(listed) != count:
                raise ValueError(f"{name} has {len(listed)} entries; it must have exactly {count}")
        window = given["balance_batches"] if given["balance"] is not None else 1
        if given["balance"] is not None and budget is not None:
            raise ValueError(
                f"balance={given['balance'][1]!r:.80} needs batches of fixed sizes, and "
                f"max_padded_elements={budget} gives them about one cost already: leave one out"
            )
        if most is not None:
            # Fewer, and buckets that wait for their last row could fill it up: nothing would move.
            apart = self._sources_apart or 1
            least = apart * sum((size or budget) * window - 1 for size in sizes) + 1
            if most < least:
                raise ValueError(
                    f"max_examples_in_flight={most} is too small: {apart * count} buckets that "
                    f"each lack one row of a batch hold {least - 1}, so the least is {least}"
                )
        cost = given.pop("cost")
        if cost is not None:
            given["cost"] = cost
            if budget is None:
                raise ValueError(
                    f"cost={cost[1]!r:.80} needs max_padded_elements, the budget that it counts in"
                )
        elif budget is not None and given["length"] is None:
            raise ValueError(
                f"max_padded_elements={budget} needs input_length, or cost: a budget counts padded "
                "steps"
            )
        if sampled:
            given["num_buckets"] = count
        return kept._with_shape("bucket", given)

    def _kept(self, keep_input: Value | None) -> Pipeline:
        """Return the pipeline with a stage that drops the examples that are not to be kept."""
        if keep_input is None or keep_input is True:
            return self
        selector = checked_value("keep_input", keep_input, self.fields, constant=(0, 1))
        if selector[0] == "constant" and selector[1] not in (0, 1):
            raise ValueError(f"keep_input={keep_input!r} is neither true nor false")
        return self._with_stage("keep", keep=selector)

    @checking
    def pack(
        self,
        length: int,
        batch_size: int,
        columns: Sequence[str] | None = None,
        strategy: Literal["best_fit", "first_fit", "concat"] = "best_fit",
        *,
        max_open: int = 64,
        too_long: Literal["error", "cut", "drop"] = "error",
        allow_smaller_final_batch: bool = False,
        padding_values: PaddingValues | None = None,
        mask: bool = False,
        balance: Value | None = None,
        balance_batches: int = _BALANCE_BATCHES,
    ) -> Pipeline:
        """Return batches of ``batch_size`` rows of ``length`` steps, each of several examples.

        ``columns`` are packed, by default all whose first dimension varies: ``[B, length, …]``,
        with zeros behind the last example of a row.  ``batch["segment_ids"]`` numbers the examples
        of each row from 1 (0: padding), ``batch["positions"]`` counts the steps of each example
        from 0; both are int32 ``[B, length]``.  ``batch.cu_seqlens`` has the borders of all
        examples in the flattened batch.  Every other column, and every fact, has a value for each
        example of a row: ``[B, most examples of a row, …]``.

        "best_fit" puts an example into the open row that it fills best, "first_fit" into the oldest
        with room for it; ``max_open`` rows are open at a time.  "concat" fills each row to the end
        and cuts examples at its border: the next row goes on with the rest, positions too.

        An example that is longer than a row is a bad example, or cut, or dropped and counted, as
        ``too_long`` says; "concat" cuts it into as many rows as it needs.

        ``padding_values`` and ``mask`` are those of ``batch``, for all columns: the mask of a
        column that is not packed is True where a row has an example.  ``balance`` is that of
        ``batch``, too; a row costs what its examples do.
        """
        if columns is not None:
            columns = checked_names("columns", columns, self.fields)
        given = {name: value for name, value in vars().items() if name != "self"}
        shape = Shape("pack", _balanced(given))
        if self.fields is not None:
            try:
                shape.made().schema(self.fields)
            except DataError as error:
                raise ValueError(str(error)) from None
        return self._ended(shape)

    @checking
    def stratified_sample_unknown_dist(
        self,
        labels: Value,
        probs: Sequence[float],
        batch_size: int,
        enqueue_many: bool = False,
        queue_capacity: int = 16,
        *,
        seed: int = 0,
        dynamic_pad: bool = False,
        max_examples_in_flight: int = 8192,
        pad_to_multiple: int | None = None,
        pad_to: PadTo | None = None,
        padding_values: PaddingValues | None = None,
        mask: bool = False,
        ragged: bool = False,
    ) -> Pipeline:
        """Return batches with class counts drawn from ``probs``, for any proportions of the source.

        Rows of a batch are grouped by ascending class; each class is first in, first out.  Examples
        wait in the queue of their class.  One is dropped if its class has ``queue_capacity`` of
        them and all classes together ``max_examples_in_flight``.  With ``enqueue_many`` each
        example has a batch dimension, ``labels`` too, and its rows are judged one by one, as after
        ``.unbatch()``.  The arguments from ``pad_to_multiple`` on are those of ``batch``.
        """
        given = {**vars(), "allow_smaller_final_batch": False, "probs": _mix("probs", probs)}
        pipeline = self.unbatch() if given.pop("enqueue_many") else self
        given["labels"] = checked_value("labels", labels, pipeline.fields, integer=True)
        return pipeline._with_shape("stratified_sample_unknown_dist", given)

    # Shapes of segments that follow one another with saved states

    @checking
    def batch_sequences_with_states(
        self,
        input_key: str | None = None,
        input_sequences: Columns = _NEEDED,
        input_context: Columns = _NEEDED,
        input_length: Value | None = None,
        initial_states: Mapping[str, object] = _NEEDED,
        num_unroll: int = _NEEDED,
        batch_size: int = _NEEDED,
        capacity: int | None = 1000,
        allow_small_batch: bool = True,
        pad: bool = True,
        make_keys_unique: bool = False,
        make_keys_unique_seed: int | None = None,
        *,
        order: Literal["arrival", "lanes"] = "arrival",
        state_placement: Literal["server", "trainer"] = "server",
        stride: int | None = None,
        left: int = 0,
        right: int = 0,
        phase: Literal["random"] | None = None,
        phase_seed: int | None = None,
        padding_values: PaddingValues | None = None,
        mask: bool = False,
        pack: bool = False,
        lane: Value | None = None,
        max_staleness: int | None = None,
        stale: Literal["skip", "mark"] = "skip",
        exact_last: bool = False,
    ) -> Pipeline:
        """Return batches of segments of ``num_unroll`` steps, with the states saved before them.

        Only ``input_key``, ``input_length`` and what follows ``batch_size`` may be left out.

        ``input_key`` is a column of one string or integer, unique among the examples in flight;
        ``make_keys_unique`` appends a number to it, drawn from ``make_keys_unique_seed`` (None: 0).
        None: the number of the example in the source is its key.  The key of an integer is its
        decimal digits, as ``b"17"``.

        ``input_sequences`` are columns ``[T, …]`` of equal T, ``input_context`` columns that every
        segment repeats: lists of columns, or dicts of the name in the batch to the column.
        ``input_length`` gives an example's steps before padding: a column of integers, a sequence
        whose steps count, or a function; None: T.

        ``initial_states`` is a dict of name to ``zeros(shape, dtype)``, a constant, or the name of
        a column in which each example brings its own.  A constant has its numpy dtype: Python
        floats are float64, ints int64.  Strings in a list are a constant of dtype bytes, a str is a
        column's name.  With
        ``order="lanes"`` it may be ``{}``, for models that keep their states themselves: then
        batches are committed and prefetched like plain ones.

        A partition has at most ``capacity`` examples in flight (None: any number).  When the source
        ends, ``allow_small_batch`` finishes every example in smaller batches; without it segments
        that fill no batch are dropped and counted.  ``pad`` fills up the last segment; without it T
        must be a multiple of ``num_unroll``, and ``input_length`` must be given.

        With ``order="arrival"`` the oldest examples come first, and rows move up when one ends.
        With ``"lanes"`` a row stays with its example to the end and then takes the next, so with
        ``state_placement="trainer"`` states can stay in the trainer's memory.

        Segment k begins at step k·``stride`` (None: ``num_unroll``, at most that), with the state
        before that step.  ``left`` and ``right`` steps of context stand before and after its own
        ``num_unroll`` in ``sequences``; ``left_length`` and ``right_length`` count the real ones.
        With ``phase="random"`` the first segment has 1 … ``stride`` steps, drawn anew for each
        example and epoch from ``phase_seed`` (None: 0), and its successor begins after them.

        ``padding_values`` gives sequences, by their names in the batch, a value for steps that no
        example has, in place of 0, False or the empty string.  With ``mask`` there is
        ``sequences["NAME_mask"]`` for each, bool ``[B, left + num_unroll + right]``, True at the
        steps that ``length``, ``left_length`` and ``right_length`` count.

        With ``pack`` a lane goes on with the next example where one ends inside a row, so that only
        the last rows of a partition have padding: see docs/packing.md.

        ``lane`` assigns examples to lanes: a column of integers, or a function of the columns.  A
        partition has ``batch_size`` lanes, and that many more for each further rank: rank r has the
        numbers from r · ``batch_size`` on.  Examples of a lane follow one another in their order;
        one whose lane is busy waits, and counts in ``capacity``.  Where that is reached and a lane
        has no example, batches leave it out (``allow_small_batch``) until others have caught up.

        Directly after ``live`` a segment is handed out as soon as its steps are there.  One whose
        policy lags by more than ``max_staleness`` versions is left out (``stale="skip"``), or is
        marked by ``batch.stale``.  With ``exact_last`` a segment waits for one step more, or the
        end of its sequence, so that ``batch.last`` is right: see docs/live-data.md.
        """
        return self._in_segments(vars())

    @checking
    def sequence_queueing_state_saver(
        self,
        batch_size: int,
        num_unroll: int,
        input_length: Value,
        input_key: str | None = None,
        input_sequences: Columns = _NEEDED,
        input_context: Columns = _NEEDED,
        initial_states: Mapping[str, object] = _NEEDED,
        capacity: int | None = None,
        allow_small_batch: bool = False,
        *,
        order: Literal["arrival", "lanes"] = "arrival",
        state_placement: Literal["server", "trainer"] = "server",
        stride: int | None = None,
        left: int = 0,
        right: int = 0,
    ) -> Pipeline:
        """Like ``batch_sequences_with_states``, of sequences that need no padding.

        Every T is a multiple of ``num_unroll``, or ``num_unroll`` plus a multiple of ``stride``;
        ``input_length`` is the number of steps to use.
        """
        return self._in_segments(vars() | {"pad": False})

    def _in_segments(self, given: dict[str, Any]) -> Pipeline:
        every = inspect.signature(Pipeline.batch_sequences_with_states).parameters
        del given["self"]
        given = {n: given.get(n, one.default) for n, one in every.items() if n != "self"}
        if missing := [name for name, value in given.items() if value is _NEEDED]:
            raise TypeError(f"batch_sequences_with_states() lacks {', '.join(missing)}")
        if self._source.logs and given["input_length"] is not None:
            raise ValueError(
                "input_length does not go with a log (hs.live): a sequence has the steps that its "
                "producer gave; leave it out, and have producers end sequences earlier"
            )
        live = grows(self._source, self._order, self._stages)
        return self._ended(Shape(SEQUENCES, segmented(given, self.fields, live)))

    @checking
    def map_segments(
        self,
        fn: Function,
        seed: int | None = None,
        *,
        schema: Mapping[str, Feature | Field] | None = None,
        pad_to_multiple: int | None = None,
        pad_to: PadTo | None = None,
        padding_values: PaddingValues | None = None,
        mask: bool = False,
    ) -> Pipeline:
        """Replace the sequences of each segment by the result of a function, after their shape.

        ``fn`` is called as ``fn(sequences, context)`` when a batch is made, with one segment: dicts
        of ``batch.sequences`` and ``batch.context`` without the dimension of the batch, padding and
        masks included.  It returns a dict of the new sequences: arrays or bytes of any shapes, the
        same for all segments unless ``schema`` declares that they vary.  So the frames of one
        segment are decoded, and not those of the whole example.

        With ``seed`` the call is ``fn(sequences, context, rng)``: ``rng`` is a
        ``numpy.random.Generator`` of this example, epoch and segment alone.

        ``schema`` declares the result; without it the first segment of the source shows it.  A
        sequence that it declares by ``hs.sequence(dtype, shape)`` may have another size in each
        segment, as the boxes of a frame do; it is padded to the largest of the batch.  The
        arguments from ``pad_to_multiple`` on are those of ``batch``, for such sequences.

        A call that raises, or gives something else, is a bad example.  Where these are skipped the
        segment stays in its batch, with ``length`` 0 and zeros, and its example goes on.
        """
        shape = self._shape
        if shape is None or shape.kind != SEQUENCES:
            raise ValueError(
                ".map_segments() comes after .batch_sequences_with_states() or "
                ".sequence_queueing_state_saver(): its function gets one segment"
            )
        if "pack" in shape.options:
            raise ValueError(
                "map_segments() does not go with pack=True: a row has segments of several "
                "examples, and the function gets one; call .map(…) before the shape"
            )
        if "map" in shape.options:
            raise ValueError(
                "map_segments() is called twice: call it once, with a function that does both"
            )
        if self._source.logs and schema is None:
            raise ValueError(
                "a log (hs.live) may be empty when it is opened, so no first segment shows what "
                ".map_segments() makes: declare it by map_segments(…, schema=…)"
            )
        wire: Any = schema  # since it was checked
        for name, _, dims in wire or ():
            block_name("a name in schema", "sequences", name + MASK * (mask and -1 in dims))
        padding: dict[str, Any] = {"pad_to_multiple": pad_to_multiple, "pad_to": pad_to}
        padding |= {"padding_values": padding_values, "mask": mask}
        for name, value in padding.items() if wire is None else ():
            if value:
                raise ValueError(
                    f"{name}={value!r} is for sequences that vary, and a schema declares which do: "
                    "map_segments(…, schema={name: hs.sequence(dtype, shape)})"
                )
        known = None if wire is None else schema_from_wire(wire)
        padding = padded({"dynamic_pad": True, **padding}, known)
        mapping = {"function": name_of(fn), "seed": seed, "schema": schema, **padding}
        return replace(self, _shape=Shape(SEQUENCES, {**shape.options, "map": mapping}))

    # The feed

    @checking
    def options(
        self,
        *,
        on_bad_example: Literal["fail", "skip"] = "fail",
        max_bad_examples: int | None = None,
    ) -> Pipeline:
        """Declare the policy for bad examples, in place of an earlier one.

        "fail": the feed stops, every trainer gets the error.  "skip": they are counted, logged with
        their origin, and never more than ``max_bad_examples`` (None: any number).  Each epoch
        counts anew the bad examples that it reads, and each server of a shared feed counts its own.
        """
        if max_bad_examples is not None and on_bad_example == "fail":
            raise ValueError(
                f"max_bad_examples={max_bad_examples} needs on_bad_example='skip': the first bad "
                "example stops a feed with 'fail'"
            )
        return replace(self, _policy=Policy(on_bad_example, max_bad_examples))

    # The declaration

    def declaration(self) -> Declaration:
        """Return the whole pipeline as plain data.  ValueError while it has no shape."""
        if self._shape is None:
            raise ValueError(f"the pipeline {self!r} has no shape: end it with one of {_SHAPES}")
        return Declaration(self._source, self._order, self._stages, self._shape, self._policy)

    def _open(self, method: str) -> None:
        if self._shape is not None and method not in ("options", "map_segments"):
            kind = self._shape.kind
            shape = "sequences with states" if kind == SEQUENCES else f".{kind}()"
            shape = f".shape({kind})" if is_theirs(kind) else shape
            raise ValueError(
                f".{method}() comes after {shape}: the shape ends a pipeline; call stages before "
                "it, and no second shape"
            )

    def _with_stage(self, kind: str | Sent, /, **options: object) -> Pipeline:
        return replace(self, _stages=(*self._stages, Stage(kind, options)))

    @checking
    def shape(self, shape: type | str, /, **options: object) -> Pipeline:
        """End the pipeline with a shape of your own: a subclass of ``hs.Shape``.

        It is given itself, or by its name "module:Class".  ``Class(**options)`` is made here, which
        refuses bad options, and once for each partition; options are plain data.  See
        docs/pipelines.md.
        """
        return self._ended(Shape(name_of(shape, "shape"), options))

    def _with_shape(self, kind: str, options: Options) -> Pipeline:
        """Return the pipeline with a shape of padded rows, of these arguments of a call."""
        given = _balanced({name: value for name, value in options.items() if name != "self"})
        if apart := self._sources_apart:
            given["sources"] = apart
            if kind == "batch":
                kind, given["batch_sizes"] = "bucket", [given.pop("batch_size")]
                given["capacity"] = None
        return self._ended(Shape(kind, padded(given, self.fields)))

    @property
    def _sources_apart(self) -> int:
        """The number of sources of a mix of which no batch has rows of two; 0: it may."""
        return self._stages[0].made().apart if self._source.kind == "mix" else 0

    def _ended(self, shape: Shape) -> Pipeline:
        if self._source.logs and self.fields is None:
            raise ValueError(
                "a log (hs.live) may be empty when it is opened, so no first example shows the "
                "columns that .map() makes: declare them by map(…, schema=…)"
            )
        if self._sources_apart and shape.kind != "bucket":
            what = "a feed of segments" if shape.kind == SEQUENCES else f".{shape.kind}()"
            raise ValueError(
                f"{what} gathers rows of all sources, and by='batch' of mix() is for .batch() and "
                "for buckets: declare the mix with by='example'"
            )
        return replace(self, _stages=_grouped(self._stages, shape), _shape=shape)

    def __hash__(self) -> int:
        return hash((self._source.paths, self._order, self._policy, len(self._stages)))

    def __repr__(self) -> str:
        return "\n  .".join(self._calls)


def check_alike(of: str, sources: Mapping[str, Pipeline]) -> None:
    """Raise ValueError where sources have other columns, as far as they are declared."""
    known = [(name, one.fields) for name, one in sources.items() if one.fields is not None]
    for name, fields in known[1:]:
        if fields != known[0][1]:
            raise ValueError(
                f"the sources of {of} have the same columns: {name!r} has {fields_text(fields)}, "
                f"and {known[0][0]!r} has {fields_text(known[0][1])}; declare features= alike, "
                "with a default where a record lacks one, or have .map or .select of each make them"
            )


def _balanced(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a shape, those of balance left out where no cost is given."""
    if given.get("balance"):
        return given
    if (batches := given.get("balance_batches", _BALANCE_BATCHES)) != _BALANCE_BATCHES:
        raise ValueError(f"balance_batches={batches} needs balance=, the cost of an example")
    left_out = ("balance", "balance_batches")
    return {name: value for name, value in given.items() if name not in left_out}


def _mix(argument: str, value: object) -> list[float]:
    mix: list[float] = probabilities(argument, value).tolist()
    if len(mix) > _MAX_CLASSES:
        raise ValueError(f"{argument} has {len(mix)} classes; the most is {_MAX_CLASSES}")
    return mix


def _ascending(boundaries: list[int] | None) -> list[int]:
    if boundaries is None:
        raise ValueError("bucket_boundaries is missing, or num_buckets in its place")
    if not boundaries:
        raise ValueError("bucket_boundaries is empty: one boundary makes two buckets")
    for i, (one, following) in enumerate(pairwise(boundaries), 1):
        if following <= one:
            raise ValueError(
                f"bucket_boundaries[{i}]={following} does not exceed the one before, {one}: "
                "boundaries ascend"
            )
    return boundaries


# Groups: rows that are read at once, where a stage computes over neighbours of the source.
#
#     weighted_resample(group=8)          a mean over 8 examples     ─┐
#     map(vectorized=True, seed=7)        one draw for 256           ─┴─► every read is one group
#
# A partition's reads then end at multiples of the group, wherever it was resumed.  So all stages of
# a pipeline have the same one, and shapes that bound a read must have room for it.


def _grouped(stages: tuple[Stage, ...], shape: Shape) -> tuple[Stage, ...]:
    """Return the stages with their groups; ValueError where these differ or do not fit."""
    made = [stage.made() for stage in stages]
    given = {one.group: stage for stage, one in zip(stages, made, strict=True) if one.group}
    ending = None if shape.kind == SEQUENCES else shape.made()
    bound = None if ending is None else ending.read_bound()
    sizes = [shape.options["batch_size"]] if ending is None else ending.batch_sizes
    for stage, one in zip(stages, made, strict=True):
        if one.group is None and (usual := one.usual_group(sizes, bound)):
            given[usual] = stage
    if len(given) > 1:
        kinds = " and ".join(dict.fromkeys(f"{stage.kind}()" for stage in given.values()))
        raise ValueError(
            f"{kinds} is called with groups of {sorted(given)}: what is read at once is one "
            "group, so they must be alike"
        )
    group = max(given, default=min(_DRAWN_AT_ONCE, bound or _DRAWN_AT_ONCE))
    if bound is not None and group > bound:
        raise ValueError(
            f"{given[group].kind}() reads group={group} examples at once, and bucket_capacities or "
            f"max_examples_in_flight let at most {bound} in: give a smaller group, or raise them"
        )
    return tuple(
        Stage(stage.kind, {**stage.options, "group": group}) if one.group is None else stage
        for stage, one in zip(stages, made, strict=True)
    )
