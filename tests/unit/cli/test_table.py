"""The table of commands and what each of them declares."""

from __future__ import annotations

import pytest

from headrace_server.cli.frame import COMMANDS, command


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_is_declared_in_a_module_of_its_name(name: str):
    found = command(name)
    assert found.description.endswith(".") and callable(found.run)
    names = [option.name for option in found.options]
    assert len(names) == len(set(names)) and all(n.isidentifier() for n in names)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_is_for_and_its_default_is_of_its_kind(name: str):
    kinds = {
        "text": str,
        "path": str,
        "target": str,
        "integer": int,
        "seconds": float,
        "flag": bool,
        "share": tuple,
    }
    for option in command(name).options:
        assert option.help and not option.help.endswith("."), option.name
        if option.default is not None:
            values = option.default if option.many else [option.default]
            assert all(type(v) is kinds[option.kind] for v in values), option.name
            assert not option.choices or option.default in option.choices
        assert option.kind != "flag" or option.default is not None, option.name


def test_what_a_command_is_for_fits_a_line():
    assert all(len(summary) < 70 for summary in COMMANDS.values())
