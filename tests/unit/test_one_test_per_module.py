"""Every module has a file of tests that bears its name, so that one knows where to look and to add.

The few whose tests stand under another name are listed with that name, and why.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"

#: Module → the file that holds its tests.
TESTED_IN = {
    # Numbers and plain values that others are made of.
    "headrace_proto.limits": "test_codec.py",
    # Parts of the client's machine and of its waits.
    "headrace.leases": "test_session.py",
    "headrace.wait_errors": "test_link.py",
    # What the driver uses, and both ends of a channel together.
    "headrace.transports": "test_driver.py",
    "headrace.connection": "test_driver.py",
    "headrace_proto.channel": "test_channel_server.py",
    "headrace_server.core.stored_state": "test_store.py",
    "headrace_server.core.dispatch_effects": "test_dispatch.py",
    "headrace_server.core.plan": "test_partition.py",
    "headrace_server.core.row_queue": "test_bucket.py",
    "headrace_server.making.partition_commits": "test_partition_run.py",
    "headrace_server.reading.reader": "test_sources.py",
    "headrace_server.pipeline.argument_checks": "test_builder.py",
    "headrace_server.pipeline.signatures": "test_builder.py",
    "headrace_server.pipeline.steps": "test_builder.py",
    "headrace_server.pipeline.segment_options": "test_segmenting.py",
    "headrace_server.pipeline.read_groups": "test_row_steps.py",
    "headrace_server.pipeline.sources": "test_source_declarations.py",
    "headrace_server.process.in_thread": "test_in_process.py",
    "headrace_server.process.relay_messages": "test_front_channel.py",
    "headrace.framework": "test_batch.py",
    "headrace_server.cluster.share_server": "test_on_ray.py",
    "headrace.segment_columns": "test_segments.py",
    "headrace.segment_keys": "test_segments.py",
    "headrace.traceable": "test_traced.py",
    "headrace.checkpoints": "test_snapshots.py",
    "headrace.segment_rows": "test_segments.py",
    "headrace.credentials": "test_key_gate.py",
    "headrace.keras_callbacks": "test_keras_resume.py",
    "headrace.keras_workers": "test_mirrored.py",
    "headrace.tf_elements": "test_tf_dataset.py",
    "headrace_server.arguments": "test_server.py",
    "headrace_server.supervisor.crew": "test_supervisor.py",
    # Parts of one machine or one reader, which is tested as a whole.
    "headrace_server.reading.conversion_notes": "test_conversion.py",
    "headrace_server.files.mapped_files": "test_tfrecord.py",
    "headrace_server.reading.user_columns": "test_stages.py",
    "headrace_server.reading.row_functions": "test_stages.py",
    "headrace_server.reading.cached_rows": "test_cache.py",
    "headrace_server.reading.sources.arrow_columns": "test_arrow.py",
    "headrace_server.reading.sources.example_columns": "test_tfrecord.py",
    "headrace_server.reading.sources.factory": "test_function.py",
    "headrace_server.reading.sources.example_layouts": "test_tfrecord.py",
    "headrace_server.reading.sources.example_parse": "test_example_wire.py",
    "headrace_server.reading.sources.tfrecord_streams": "test_tfrecord.py",
    "headrace_server.making.compose": "test_partition_run.py",
    "headrace_server.making.plain_maker": "test_partition_run.py",
    "headrace_server.making.plain_commits": "test_partition_run.py",
    "headrace_server.making.segment_maker": "test_segment_commits.py",
    "headrace_server.core.batch_lifecycle": "test_dispatch.py",
    "headrace_server.core.plain_supply": "test_dispatch.py",
    "headrace_server.core.supply": "test_arrival_supply.py",
    "headrace_server.core.segment_supply": "test_arrival_supply.py",
    "headrace_server.making.stored_rounds": "test_segment_commits.py",
    "headrace_server.reading.trace": "test_flight.py",
    "headrace_server.flight.hand_outs": "test_feed_record.py",
    "headrace_server.flight.rows": "test_feed_record.py",
    # What only whole processes and real frameworks can show.
    "headrace_server.cli.__main__": "test_cli.py",
    "headrace_server.cli.check": "test_offline_commands.py",
    "headrace_server.cli.convert": "test_offline_commands.py",
    "headrace_server.cli.preview": "test_offline_commands.py",
    "headrace_server.replay_server": "test_flight.py",
    "headrace_server.worker.events": "test_announcing.py",
    "headrace_server.front.front": "test_owner.py",
    "headrace_server.state.journal_file": "test_journal.py",
    "headrace_server.worker.reception": "test_hostile.py",
    "headrace_server.worker.admission": "test_hostile.py",
    "headrace_server.flight.replaying": "test_flight.py",
    "headrace_server.flight.skipping": "test_flight.py",
    "headrace_server.worker.worker": "test_faults.py",
    "headrace.dataset_arguments": "test_tensorflow.py",
    "headrace.tf": "test_tensorflow.py",
}


def modules() -> list[str]:
    """All modules of the three packages, less those that only collect names."""
    return [
        ".".join(path.relative_to(ROOT / root).with_suffix("").parts)
        for root in ("proto", "server", "client")
        for path in sorted((ROOT / root).rglob("*.py"))
        if path.name != "__init__.py"
    ]


def has_tests(module: str) -> bool:
    """Whether a file of tests bears the module's name, in its package's folder or for processes."""
    package, room, *_ = [*module.split(".")[:-1], ""]
    mirror = {"headrace": "client", "headrace_proto": "proto"}.get(package, room)
    names = files(f"unit/{mirror}/") | files("integration/")
    return f"test_{module.rpartition('.')[2]}.py" in names


@cache
def files(folder: str) -> set[str]:
    return {path.name for path in TESTS.joinpath(folder).rglob("*.py")}


def test_a_module_has_its_file_of_tests():
    """Write it, or list here where the module's tests stand."""
    without = [module for module in modules() if module not in TESTED_IN and not has_tests(module)]
    assert not without
    assert set(TESTED_IN.values()) <= files("")


def test_the_list_of_exceptions_is_no_longer_than_it_must_be():
    assert TESTED_IN.keys() <= set(modules())
    assert not [module for module in TESTED_IN if has_tests(module)]
