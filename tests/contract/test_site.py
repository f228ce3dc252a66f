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


def test_every_page_has_its_place_in_the_navigation_once():
    listed = sorted(_listed(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    pages = [str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md")]
    assert listed == sorted([*pages, *_hooks().ROOT_PAGES.values()]), "add the page to mkdocs.yml"


@pytest.mark.pages
def test_every_link_of_the_built_site_leads_somewhere_in_it(site):
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
