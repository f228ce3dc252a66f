"""The site of docs/: every page has its place, every link leads somewhere, nothing is loaded."""

from __future__ import annotations

import html
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
yaml = pytest.importorskip("yaml", reason="needs the extra docs")
pytest.importorskip("mkdocs", reason="needs the extra docs")
pytest.importorskip("material", reason="needs the extra docs")


def _hooks() -> Any:
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "packaging/mkdocs_hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks = _hooks()


def _listed(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from _listed(inner)


def _build(target: Path, config: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    return subprocess.run(
        [*command, "--config-file", config, "--site-dir", target],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = _build(target)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def test_every_page_has_its_place_in_the_navigation_once() -> None:
    listed = sorted(_listed(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    pages = [str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md")]
    assert listed == sorted([*pages, *hooks.ROOT_PAGES.values()]), "add the page to mkdocs.yml"


def test_every_decision_is_in_the_list_of_decisions() -> None:
    listed = (ROOT / "docs/decisions/README.md").read_text()
    assert re.findall(r"\((\d.*?\.md)\)", listed) == sorted(
        path.name for path in ROOT.glob("docs/decisions/0*.md")
    )


@pytest.mark.slow
def test_every_link_of_the_built_site_leads_somewhere_in_it(site: Path) -> None:
    pages = {page: page.read_text() for page in site.rglob("*.html") if page.name != "404.html"}
    anchors = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in pages.items()}
    checked = 0
    for page, text in pages.items():
        for target in map(html.unescape, re.findall(r'(?:href|src)="([^"]+)"', text)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            linked = (page.parent / path).resolve() if path else page
            assert linked.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors[linked], f"{page.name}: {target}"
            checked += 1
    assert checked > 1000


@pytest.mark.slow
def test_documents_beside_the_pages_and_files_of_the_repository_are_on_the_site(site: Path) -> None:
    assert "A feeding server for training" in (site / "index.html").read_text()
    assert (site / "changelog.html").exists() and (site / "architecture.html").exists()
    example = (site / "files/examples/stateful_torch.py.html").read_text()
    assert "save_state" in example
    assert "files/examples/stateful_torch.py.html" in (site / "sequences.html").read_text()
    assert "<!-- setup" not in (site / "pipelines.html").read_text()


@pytest.mark.slow
def test_a_site_with_a_font_of_the_network_or_a_page_without_a_place_is_not_built(tmp_path: Path):
    """One build has both faults: the hook raises, and a strict build fails at a warning."""
    config = (ROOT / "mkdocs.yml").read_text()
    for old, new in (
        ("font: false", "font: {text: Roboto}"),
        ("- Buckets: buckets.md", ""),
        ("docs_dir: docs", f"docs_dir: {ROOT}/docs"),
        ("[packaging/", f"[{ROOT}/packaging/"),
    ):
        assert old in config
        config = config.replace(old, new)
    (tmp_path / "mkdocs.yml").write_text(config)
    done = _build(tmp_path / "site", tmp_path / "mkdocs.yml")
    told = done.stdout + done.stderr
    assert done.returncode != 0 and "the site must work without a network" in told
    assert re.search(
        r"WARNING .*not included in the \"nav\" configuration:\n.*buckets\.md", told
    ), told


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/css">',
        '<link rel="preconnect" href="https://fonts.example" crossorigin>',
        '<img src="https://badges.example/b.svg">',
        "<style>@import url('https://fonts.example/css');</style>",
        '<div style="background: url(https://pictures.example/p.png)">',
        '<pre class="mermaid">graph</pre>',
    ],
)
def test_what_a_browser_would_load_from_elsewhere_is_seen(text: str) -> None:
    assert len(hooks.loaded_from_elsewhere(text, ".html")) == 1


def test_a_link_that_is_clicked_loads_nothing() -> None:
    text = '<a href="https://semver.org">x</a><link rel="next" href="https://a.example/b">'
    assert hooks.loaded_from_elsewhere(text + '<img src="pictures/a.svg">', ".html") == []
