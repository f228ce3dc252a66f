"""What makes a site of pages that are written to be read in the repository.

    README.md, CHANGELOG.md …     are pages of the site too (ROOT_PAGES)
    a link out of docs/           leads to a page that shows that file, or that directory's files
    what is built                 loads nothing from anywhere else, or the build fails

mkdocs calls the functions whose names begin with ``on_``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
#: Documents beside docs/, and what they are called on the site.
ROOT_PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
}
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_STYLE_LOADS = re.compile(r"(?:@import\s*(?:url\()?|url\()\s*['\"]?((?:https?:)?//[^'\")\s]+)")
_LANGUAGES = {".py": "python", ".yml": "yaml", ".yaml": "yaml", ".md": "markdown"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that do not lie in docs/."""
    for name, uri in ROOT_PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / name).read_text()))
    shown = {}
    for page in [file for file in files if file.is_documentation_page()]:
        for target in _linked(page.content_string, _source(page.src_uri)):
            if (uri := _uri(target)).startswith("files/"):
                shown[uri] = target
    for uri, target in sorted(shown.items()):
        files.append(File.generated(config, uri, content=_showing(target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make the links of a page lead to pages of the site."""
    here = page.file.src_uri
    if here.startswith("files/"):
        return markdown

    def led(target: str) -> str:
        return posixpath.relpath(_uri(target), posixpath.dirname(here))

    return _relinked(markdown, _source(here), led)


def on_post_build(config: MkDocsConfig) -> None:
    """Fail when a page would load something that is not part of the site."""
    site = Path(config.site_dir)
    found = [
        f"{file.relative_to(site)} loads {address}"
        for file in sorted([*site.rglob("*.html"), *site.rglob("*.css")])
        for address in loaded_from_elsewhere(file.read_text(), file.suffix)
    ]
    if found:
        raise PluginError("the site must work without a network: " + "; ".join(found[:5]))


def loaded_from_elsewhere(text: str, suffix: str) -> list[str]:
    """Addresses that a browser would load of its own accord; links that are clicked are none."""
    found = _STYLE_LOADS.findall(text)
    if suffix == ".html":
        reader = _Loads()
        reader.feed(text)
        found += reader.found
    return found


class _Loads(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        names = ("src", "srcset", "data", "poster", *(("href",) if tag == "link" else ()))
        # A relation that only says where the same page is, or another one.
        if tag == "link" and given.get("rel") in ("canonical", "next", "prev", "alternate"):
            return
        for name in names:
            address = given.get(name) or ""
            if re.match(r"(?:[a-z]+:)?//", address):
                self.found.append(address)
        if "mermaid" in (given.get("class") or "").split():
            self.found.append("mermaid, which the theme has from elsewhere")


def _source(uri: str) -> str:
    """Where the text of a page lies in the repository."""
    for name, known in ROOT_PAGES.items():
        if uri == known:
            return name
    return f"docs/{uri}"


def _uri(target: str) -> str:
    """The page, or the file, of the site that stands for a path in the repository."""
    if target in ROOT_PAGES:
        return ROOT_PAGES[target]
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return f"files/{target}.md"


def _linked(markdown: str, source: str) -> Iterator[str]:
    """Paths in the repository that a document links to."""
    found: list[str] = []

    def noted(target: str) -> str:
        found.append(target)
        return ""

    _relinked(markdown, source, noted)
    yield from found


def _relinked(markdown: str, source: str, led: Callable[[str], str]) -> str:
    """A document with other links, for those that lead to something in the repository."""

    def replaced(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        if "://" in match[2] or target.startswith("..") or not (ROOT / target).exists():
            return match[0]
        return f"{match[1]}{led(target)}{match[3]}"

    parts = _FENCED.split(_COMMENT.sub("", markdown))
    return "".join(part if i % 2 else _LINK.sub(replaced, part) for i, part in enumerate(parts))


def _showing(target: str) -> str:
    """A page with a file of the repository, or with all files of a directory."""
    path = ROOT / target
    if path.is_file():
        return f"# {target}\n\n{_fenced(path)}"
    shown = [f"# {target}\n"]
    for file in sorted(file for file in path.iterdir() if file.is_file()):
        shown += [f"## {file.name}\n", _fenced(file)]
    return "\n".join(shown)


def _fenced(path: Path) -> str:
    text: Any = path.read_text()
    return f"````{_LANGUAGES.get(path.suffix, 'text')}\n{text}````\n"
