"""The page in a real browser.

These need Debian's chromium and the ``browser`` extra (``make browser-test`` installs what it can),
and are skipped where one of them is missing.
"""
