"""The page is whole in itself, and its policy names the script and the style that it has."""

import base64
import hashlib
import re

from headrace_server.watch.answers import PAGE, PAGE_POLICY

TEXT = PAGE.decode()


def test_nothing_is_loaded_from_elsewhere():
    loaded = re.findall(r"""(?:src|href|action)\s*=\s*["']([^"']*)["']""", TEXT)
    assert all(re.match(r"data:image/svg|[a-z]+(\.json)?$", target) for target in loaded), loaded
    assert "@import" not in TEXT and "url(" not in TEXT
    # The names of namespaces are no addresses.
    named = set(re.findall(r"https?://[^\s\"'>]+", TEXT))
    assert named <= {"http://www.w3.org/2000/svg"}


def test_the_policy_has_the_hash_of_each_script_and_style_and_allows_nothing_inline():
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", TEXT, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in PAGE_POLICY
    assert "unsafe" not in PAGE_POLICY
    assert not re.search(r"<[^>]+\s(?:on\w+|style)\s*=", TEXT.partition("<script>")[0])


def test_the_script_makes_no_markup_of_texts():
    script = TEXT.partition("<script>")[2]
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
    ):
        assert word not in script
