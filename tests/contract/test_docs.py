"""The documents are true: their code runs, their links lead somewhere, their options exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace_server as hs
from headrace_server.cli.frame import COMMANDS, command
from tests.nursery import warm_run
from tests.ports import free_port

from . import commands_page
from .document import NAMED, blocks

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
#: Most characters of a line of prose.
WIDTH = 120
#: Languages of blocks.  What is code is run; the rest is for reading.
LANGUAGES = {"python", "sh", "text", "toml", ""}


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _runs(path: Path) -> bool:
    return any(block.language in ("python", "sh") for block in blocks(path.read_text()))


def _slow_imports(path: Path) -> list[str]:
    """Return the slow imports of a document's blocks that run in its own process."""
    code = [b.text for b in blocks(path.read_text()) if b.language == "python"]
    shared = "\n".join(text for text in code if not NAMED.match(text))
    return ["tensorflow"] * bool(re.search("^import (tensorflow|keras)", shared, re.MULTILINE))


#: Frameworks that the environment of the tests may lack.
_OPTIONAL = (
    *("torch", "lightning", "accelerate", "transformers", "jax", "ray"),
    *("datasets", "lance", "webdataset", "h5py", "zarr", "array_record", "PIL", "soundfile"),
)


def _missing(path: Path) -> list[str]:
    """Which of them a document imports that are not installed."""
    text = path.read_text()
    used = [n for n in _OPTIONAL if re.search(rf"^(import|from) {n}\b", text, re.MULTILINE)]
    return [name for name in used if importlib.util.find_spec(name) is None]


#: Those that need TensorFlow come last: the others are to run where it is not loaded.
RUNNING = sorted(filter(_runs, DOCUMENTS), key=lambda path: bool(_slow_imports(path)))


#: The first pages that a user meets: what runs there prints something.
FIRST = {"README.md", "docs/quickstart.md"}


def _marked(path: Path) -> Any:
    """A document as a parameter; all but the first pages run in make test-docs."""
    marks = [] if _name(path) in FIRST else [pytest.mark.pages]
    return pytest.param(path, id=_name(path), marks=marks)


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize("path", [_marked(path) for path in RUNNING])
def test_the_code_of_a_document_runs(path, tmp_path):
    if missing := _missing(path):
        pytest.skip(f"needs {', '.join(missing)}")
    runner = ROOT / "tests" / "contract" / "document.py"
    done = warm_run(
        *(runner, path, ROOT, str(free_port()), str(free_port())),
        cwd=tmp_path,
        imports=_slow_imports(path),
        timeout_s=290,  # some start several processes of several frameworks
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    assert done.stdout or _name(path) not in FIRST
    if path.name == "README.md":  # a trainer crashes, and the next one goes on: each row once
        ended = re.findall(r"^(\d+) utterances have ended", done.stdout, re.MULTILINE)
        assert len(ended) == 2 and sum(map(int, ended)) == 400


def test_the_example_of_the_readme_gives_the_shapes_that_its_comments_name(tmp_path, monkeypatch):
    text = (ROOT / "README.md").read_text()
    told = [list(map(int, shape.split(", "))) for shape in re.findall(r"\[(\d+, [\d, ]+)\]", text)]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks(text):
        if block.text.startswith(("# data.py", "# feeds.py")):
            exec(block.text, names)
    with (
        hs.run(names["speech"](), partitions=2) as server,
        headrace.connect(server.address) as feed,
    ):
        batch = next(feed)
        assert [[*batch.sequences["audio"].shape], [*batch.state("h").shape]] == told


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_a_document_hides_nothing_from_its_reader(path):
    """Comments mark generated parts, and no more: code in one would run for nobody else."""
    marks = re.compile(r" ((generated|measured): [^\n]*|end) ")
    hidden = re.findall(r"<!--(.*?)-->", path.read_text(), re.DOTALL)
    assert all(marks.fullmatch(comment) for comment in hidden), hidden


@pytest.mark.parametrize("name", sorted(FIRST))
def test_every_program_of_a_first_page_that_is_run_has_a_name_and_prints(name):
    text = (ROOT / name).read_text()
    files = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    started = re.findall(r"^python (\S+)$", text, re.MULTILINE)
    assert started and set(started) <= set(files), started
    assert all("print(" in files[file] for file in started)


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_every_block_of_a_document_is_of_a_kind_that_is_tested_or_no_code(path):
    for block in blocks(path.read_text()):
        assert block.language in LANGUAGES, f"line {block.line}: {block.language}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_the_prose_of_a_document_is_wrapped_at_one_width(path):
    """Tables, code, pictures and generated parts are as wide as they are."""
    other = r"^```.*?^```$|^<!-- generated.*?^<!-- end -->$|^(\||!\[|    ).*?$"
    prose = re.sub(
        other, lambda m: "\n" * m[0].count("\n"), path.read_text(), flags=re.MULTILINE | re.DOTALL
    )
    wide = [number for number, line in enumerate(prose.split("\n"), 1) if len(line) > WIDTH]
    assert not wide, f"wrap at {WIDTH} characters: lines {wide}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_every_relative_link_of_a_document_leads_somewhere(path):
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        assert linked.exists(), target
        assert linked == ROOT or ROOT in linked.parents, f"{target} leaves the repository"
        assert not anchor or anchor in _anchors(linked), target


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_page_of_commands_says_what_their_tables_say():
    page = commands_page.PAGE.read_text()
    assert commands_page.rewritten(page) == page, "make reference"
    for name in COMMANDS:
        assert f"\n## headrace {name}\n" in page
        assert f"\nheadrace {name} " in page, "no example that runs"


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_every_command_that_a_document_names_exists(path):
    named = set(re.findall(r"`headrace ([a-z]+)", path.read_text()))
    named -= {"serves"}  # what commands print
    if path.name == "CHANGELOG.md":  # which also lists what is gone
        named -= {"flight", "replay", "skip", "top"}
    assert named <= set(COMMANDS), sorted(named - set(COMMANDS))


def test_every_option_that_a_document_names_exists_somewhere():
    known = {option.flag for name in COMMANDS for option in command(name).options}
    known |= {option.replace("--", "--no-") for option in known}
    programs = [f"tests/{name}/__main__.py" for name in ("bench", "trials")]
    for program in programs:
        known |= set(re.findall(r'"(--[a-z][a-z-]+)"', (ROOT / program).read_text()))
    known |= {"--help", "--version"}
    known |= {"--build", "--build-arg", "--ipc", "--name", "--network", "--profile", "--shm-size"}
    known |= {
        "--volumes",
        "--ulimit",
        "--now",
        "--health-cmd",
        "--no-healthcheck",
    }  # those are docker's, and systemctl's
    known |= {"--standalone", "--nproc-per-node", "--nodes", "--max-restarts"}  # torchrun's, srun's
    for path in DOCUMENTS:
        if path.name == "CHANGELOG.md":  # which also lists what is gone
            continue
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", path.read_text()))
        assert named <= known, f"{_name(path)}: {sorted(named - known)}"
