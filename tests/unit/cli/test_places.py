"""Options from the command line, the environment and a file: precedence, and refusals."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from headrace_server.cli.options import CONFIG, add_options, settled
from headrace_server.process.option import Option
from tests.contract.interpreter import run

OPTIONS = (
    Option("pipelines", "target", "what", metavar="FILE.py:NAME", many=True, positional=True),
    CONFIG,
    Option("bind", "text", "where", default=("tcp://a",), many=True),
    Option("workers", "integer", "how many", default=1, least=1, most=8),
    Option("lease_ttl", "seconds", "how long", default=30.0),
    Option("state_dir", "path", "where", absent="memory only"),
    Option("durability", "text", "outlives", default="power", choices=("power", "off")),
    Option("exit_when_done", "flag", "do it", default=False),
)


def read(words: list[str], environment: dict[str, str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_options(parser, OPTIONS, configured=True)
    return settled(OPTIONS, parser.parse_args(words), environment or {})


@pytest.fixture
def write(tmp_path: Path):
    def written(text: str, name: str = "serve.toml") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return written


def test_each_place_has_the_word_over_those_below_it(write):
    file = write('pipelines = "m:f"\nworkers = 2\nlease_ttl = 2\nbind = ["tcp://f"]\n')
    environment = {"HEADRACE_WORKERS": "3", "HEADRACE_LEASE_TTL": "3", "HEADRACE_CONFIG": file}
    found = read(["--workers", "4"], environment)
    assert found.workers == 4  # command line, environment and file
    assert found.lease_ttl == 3.0  # environment and file
    assert found.bind == ("tcp://f",)  # file
    assert found.durability == "power"  # none
    assert found.pipelines == ("m:f",)


def test_a_flag_of_a_file_can_be_denied_on_the_command_line_and_in_the_environment(write):
    file = write('pipelines = "m:f"\nexit_when_done = true\n')
    assert read(["--config", file]).exit_when_done is True
    assert read(["--config", file, "--no-exit-when-done"]).exit_when_done is False
    assert read(["--config", file], {"HEADRACE_EXIT_WHEN_DONE": "off"}).exit_when_done is False


def test_paths_of_a_file_are_meant_from_its_directory(write, tmp_path: Path):
    file = write('pipelines = ["feeds.py:a", "module:b", "/abs/c.py:d"]\nstate_dir = "state"\n')
    found = read(["--config", file])
    assert found.pipelines == (f"{tmp_path}/feeds.py:a", "module:b", "/abs/c.py:d")
    assert found.state_dir == f"{tmp_path}/state"
    assert read(["m:f", "--state-dir", "state"]).state_dir == "state"


def test_a_target_of_a_list_may_name_its_feed(write, tmp_path: Path):
    file = write('pipelines = ["a=feeds.py:f", "b=module:g", "c=d/feeds.py:h", "e/f=g.py:i"]\n')
    named = (f"a={tmp_path}/feeds.py:f", "b=module:g", f"c={tmp_path}/d/feeds.py:h")
    assert read(["--config", file]).pipelines == (*named, f"{tmp_path}/e/f=g.py:i")


def test_yaml_says_the_same_as_toml(write):
    toml = write('pipelines = ["m:f"]\nworkers = 2\nlease_ttl = 2.5\nexit_when_done = true\n')
    yaml = write(
        "pipelines: [m:f]\nworkers: 2\nlease_ttl: 2.5\nexit_when_done: true\n", "serve.yaml"
    )
    one, two = vars(read(["--config", toml])), vars(read(["--config", yaml]))
    assert one.pop("config") != two.pop("config")
    assert one == two
    assert read(["--config", write("", "empty.yml"), "m:f"]).workers == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("worker = 2", "'worker' is no option: there are pipelines, bind, workers"),
        ("config = 'other.toml'", "'config' is no option"),
        ("workers = '2'", "workers='2' is not an integer, but a str"),
        ("workers = true", "workers=True is not an integer, but a bool"),
        ("workers = 2.0", "workers=2.0 is not an integer, but a float"),
        ("workers = 9", "workers=9 does not lie in 1 … 8"),
        ("lease_ttl = '1s'", "lease_ttl='1s' is not a number of seconds, but a str"),
        ("lease_ttl = -1", "lease_ttl=-1 does not lie in 0 … 1000000000 seconds"),
        ("lease_ttl = nan", "lease_ttl=nan does not lie in 0 … 1000000000 seconds"),
        ("exit_when_done = 1", "exit_when_done=1 is not true or false, but an int"),
        ("bind = 5557", "bind=5557 is an int, not a text (in quotes it would be)"),
        ("bind = [5557]", "bind=[5557] is an int, not a text"),
        ("durability = 'some'", "durability='some' is not one of power, off"),
        ("durability = ['power']", "is a list, not a text"),
        ("bind = {a = 'b'}", "is a dict, not a text"),
        ("pipelines = {a = 1}", "a is an int, not a text"),
        ("workers = ", "is not TOML: "),
        ("workers = 1\nworkers = 2", "is not TOML: "),
    ],
)
def test_what_a_file_says_wrong_is_named_with_the_file(text: str, words: str, write):
    file = write(text)
    with pytest.raises((ValueError, TypeError)) as caught:
        read(["--config", file, "m:f"])
    assert str(caught.value).startswith(file) and words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.yaml", "- 1", "holds a list, not options by name"),
        ("a.yaml", "a: [", "is not YAML: "),
        ("a.yaml", "[" * 5000, "is not YAML: "),
        ("a.toml", "a = " + "[" * 5000, "is not TOML: "),
        ("a.toml", "pipelines = ['=m:f']", "'=m:f' has no name of a feed before the ="),
        ("a.yaml", "durability: off", "durability=False is a bool, not a text (in quotes"),
        ("a.yml", "!!python/object/apply:os.getcwd []", "is not YAML: could not determine"),
        ("a.json", "{}", "its name ends in neither .toml nor .yaml"),
    ],
)
def test_a_file_of_another_form_is_refused(name: str, text: str, words: str, write):
    with pytest.raises((ValueError, TypeError)) as caught:
        read(["--config", write(text, name), "m:f"])
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"HEADRACE_WORKERS": "many"}, "HEADRACE_WORKERS='many' in the environment is not an int"),
        ({"HEADRACE_LEASE_TTL": "1s"}, "='1s' in the environment is not a number of seconds"),
        ({"HEADRACE_LEASE_TTL": "-1"}, "='-1' in the environment does not lie in 0 … 1000000000"),
        (
            {"HEADRACE_WORKERS": "9"},
            "HEADRACE_WORKERS='9' in the environment does not lie in 1 … 8",
        ),
        ({"HEADRACE_EXIT_WHEN_DONE": "perhaps"}, "is not true or false"),
        ({"HEADRACE_BIND": "'tcp://a"}, "is not a list of words"),
        ({"HEADRACE_DURABILITY": "some"}, "is not one of power, off"),
    ],
)
def test_what_the_environment_says_wrong_is_named(environment: dict[str, str], words: str):
    with pytest.raises(ValueError, match="in the environment") as caught:
        read(["m:f"], environment)
    assert words in str(caught.value)


def test_what_must_be_given_says_all_places_where_it_was_not():
    with pytest.raises(ValueError) as caught:
        read([])
    for place in ("FILE.py:NAME", "HEADRACE_PIPELINES", "--config"):
        assert place in str(caught.value)


def test_without_its_package_yaml_is_refused_with_the_line_that_installs_it(write):
    file = write("workers: 2\n", "serve.yaml")
    script = f"""
from headrace_server.cli import main
print(main(["serve", "--config", {file!r}]))
import contextlib, io
with contextlib.redirect_stderr(io.StringIO()) as said:
    main(["serve", "--config", {file!r}])
print(said.getvalue())
"""
    code, said = run(script, without=("yaml",)).strip().split("\n", 1)
    assert code == "1"
    assert f"--config {file} needs yaml" in said and "pip install '.[yaml]'" in said
