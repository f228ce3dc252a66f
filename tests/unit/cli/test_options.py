"""From a table of options, a command line and the environment to values."""

from __future__ import annotations

import argparse
import dataclasses

import pytest

from headrace_server.cli.options import add_options, as_options, settled
from headrace_server.process.option import Option

OPTIONS = (
    Option("targets", "text", "what", metavar="FILE", many=True, positional=True),
    Option("bind", "text", "where", default=("tcp://a", "tcp://b"), many=True),
    Option("workers", "integer", "how many", default=1, least=1, most=8),
    Option("lease_ttl", "seconds", "how long", default=30.0),
    Option("state_dir", "path", "50% of it", absent="memory only"),
    Option("durability", "text", "outlives", default="power", choices=("power", "off")),
    Option("yes", "flag", "do it", default=False),
)


def read(*words: str, environment: dict[str, str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_options(parser, OPTIONS)
    return settled(OPTIONS, parser.parse_args(words), environment or {})


def test_help_tells_every_option_with_its_default():
    parser = argparse.ArgumentParser()
    add_options(parser, OPTIONS)
    told = " ".join(parser.format_help().split())
    for words in ("(default: 1; 1 … 8)", "(default: 30)", "50% of it (default: memory only)"):
        assert words in told
    assert "where; may be repeated (default: tcp://a tcp://b)" in told and "--state-dir DIR" in told


def test_the_command_line_prevails_over_the_environment_and_that_over_defaults():
    environment = {"HEADRACE_WORKERS": "3", "HEADRACE_LEASE_TTL": "3", "HEADRACE_TARGETS": "m:f"}
    found = read("--workers", "4", environment=environment)
    assert found.workers == 4
    assert found.lease_ttl == 3.0
    assert found.durability == "power"
    assert found.targets == ("m:f",)
    assert read("m:f", environment={"HEADRACE_YES": "on"}).yes is True
    assert read("m:f", "--no-yes", environment={"HEADRACE_YES": "on"}).yes is False


@pytest.mark.parametrize(
    ("python", "command"),
    [
        (
            "use another state_dir, or give yes=True to go on",
            "use another --state-dir, or give --yes",
        ),
        (
            "lease_ttl_s=30 is too long: waited (lease_ttl_s)",
            "--lease-ttl 30 is too long: waited (--l",
        ),
        ("workers= and bind='tcp://a'", "--workers and --bind 'tcp://a'"),
        ("workers 2, my_workers=2, x.lease_ttl_s, '/state_dir/a'", None),
    ],
)
def test_a_text_that_names_arguments_of_python_names_the_options(python, command):
    options = tuple(
        dataclasses.replace(one, argument=name)
        for one in OPTIONS
        for name in [f"{one.name}_s" if one.kind == "seconds" else one.name]
    )
    assert as_options(python, options).startswith(python if command is None else command)
