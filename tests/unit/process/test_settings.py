"""The settings of a server: all that derives from their one declaration."""

import dataclasses
import inspect
import typing
from typing import Any

import headrace_server as hs
from headrace_server.process.settings import RunSettings, options_of

BATCHES = hs.from_examples([{"i": 1}]).batch(1)
KINDS = {"integer": int, "seconds": float, "flag": bool}
KINDS |= dict.fromkeys(("text", "path", "share", "ports"), str)


def test_every_field_but_the_pipeline_is_an_option_of_the_type_of_its_kind():
    hints = typing.get_type_hints(RunSettings, localns={"Pipeline": Any, "Declaration": Any})
    options = {option.argument: option for option in options_of(RunSettings)}
    fields = {one.name: one for one in dataclasses.fields(RunSettings)}
    assert set(fields) - set(options) == {"pipelines"}
    for name, option in options.items():
        accepted = typing.get_args(hints[name]) or (hints[name],)
        assert KINDS[option.kind] in accepted or hints[name] is Any, name
        default = fields[name].default
        if default is not dataclasses.MISSING:
            assert default is None or option.check(default, name) == default
            assert (type(None) in accepted or hints[name] is Any) == (default is None), name
            assert option.many or option.default == default


def test_run_has_the_signature_of_its_settings_and_documents_each():
    shown = inspect.signature(hs.run)
    assert shown.parameters == inspect.signature(RunSettings).parameters
    assert shown.return_annotation == "Server"
    told = inspect.getdoc(hs.run)
    assert told and told.startswith("S") and hs.run.__name__ == "run"
    for option in options_of(RunSettings):
        assert f"\n* ``{option.argument}``" in told
    assert "* ``max_trainers``: trainers at once (default: 4096; 1 … 65536)\n" in told
    assert (
        "\n* ``bind`` (ADDRESS): where" in told and "free one\n* ``worker_ports``" in told
    )  # what the command line binds to is not said here
