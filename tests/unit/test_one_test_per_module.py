"""Every module has a file of tests that bears its name, so that one knows where to look and to add.

The few whose tests stand under another name are listed with that name, and why.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"

#: Module → the file that holds its tests.
TESTED_IN = {
    # Numbers and plain values that others are made of.
    "headrace_proto.limits": "test_codec.py",
    # Parts of the client's machine and of its waits.
    "headrace.leases": "test_session.py",
    "headrace.deadlines": "test_link.py",
    # What the driver uses, and both ends of a channel together.
    "headrace.way": "test_driver.py",
    "headrace.wire": "test_driver.py",
    "headrace_proto.channel": "test_exchange.py",
    "headrace_server.core.changes": "test_store.py",
    "headrace_server.core.handover": "test_dispatch.py",
    "headrace_server.core.plan": "test_partition.py",
    "headrace_server.feed.reader": "test_sources.py",
    "headrace_server.pipeline.declaration": "test_source_declarations.py",
    "headrace_server.arguments": "test_server.py",
    "headrace_server.shell.crew": "test_supervisor.py",
    # Parts of one machine or one reader, which is tested as a whole.
    "headrace_server.feed.conversion_notes": "test_conversion.py",
    "headrace_server.feed.mapped_files": "test_tfrecord.py",
    "headrace_server.feed.user_columns": "test_stages.py",
    "headrace_server.feed.sources.arrow_columns": "test_arrow.py",
    "headrace_server.feed.sources.example_columns": "test_tfrecord.py",
    "headrace_server.feed.sources.example_layouts": "test_tfrecord.py",
    "headrace_server.feed.sources.example_parse": "test_example_wire.py",
    "headrace_server.feed.sources.example_templates": "test_tfrecord.py",
    "headrace_server.feed.sources.example_wants": "test_tfrecord.py",
    "headrace_server.feed.sources.record_streams": "test_streams.py",
    "headrace_server.core.hands": "test_dispatch.py",
    "headrace_server.core.plain_supply": "test_dispatch.py",
    "headrace_server.feed.trace": "test_flight.py",
    "headrace_server.shell.flight_leases": "test_flight_history.py",
    "headrace_server.shell.flight_rows": "test_flight_history.py",
    # What only whole processes and real frameworks can show.
    "headrace_server.cli.__main__": "test_cli.py",
    "headrace_server.cli.check": "test_offline_commands.py",
    "headrace_server.cli.convert": "test_offline_commands.py",
    "headrace_server.cli.preview": "test_offline_commands.py",
    "headrace_server.cli.serve": "test_cli.py",
    "headrace_server.cli.replay": "test_flight.py",
    "headrace_server.cli.skip": "test_flight.py",
    "headrace_server.replay_server": "test_flight.py",
    "headrace_server.shell.dealing": "test_runs.py",
    "headrace_server.shell.events": "test_announcing.py",
    "headrace_server.shell.front": "test_owner.py",
    "headrace_server.shell.house": "test_owner.py",
    "headrace_server.shell.journal_file": "test_journal.py",
    "headrace_server.shell.partitions": "test_faults.py",
    "headrace_server.shell.reception": "test_hostile.py",
    "headrace_server.shell.admission": "test_hostile.py",
    "headrace_server.shell.replaying": "test_flight.py",
    "headrace_server.shell.skipping": "test_flight.py",
    "headrace_server.shell.worker": "test_faults.py",
    "headrace.datasets": "test_tensorflow.py",
    "headrace.jax": "test_frameworks.py",
    "headrace.tf": "test_tensorflow.py",
    "headrace.torch": "test_frameworks.py",
}


def modules() -> list[str]:
    """All modules of the three packages, less those that only collect names."""
    return [
        ".".join(path.relative_to(ROOT / root).with_suffix("").parts)
        for root in ("proto", "server", "client")
        for path in sorted((ROOT / root).rglob("*.py"))
        if path.name != "__init__.py"
    ]


def files_of_tests() -> set[str]:
    return {path.name for path in TESTS.rglob("test_*.py")}


@pytest.mark.parametrize("module", modules())
def test_a_module_has_its_file_of_tests(module: str):
    name = f"test_{module.rpartition('.')[2]}.py"
    if TESTED_IN.get(module, name) not in files_of_tests():
        pytest.fail(
            f"{module} has no tests/**/{name}: write it, or list in {Path(__file__).name} where "
            "its tests stand"
        )


@pytest.mark.parametrize("module", TESTED_IN)
def test_the_list_of_exceptions_is_no_longer_than_it_must_be(module: str):
    assert module in modules()
    assert f"test_{module.rpartition('.')[2]}.py" not in files_of_tests()
