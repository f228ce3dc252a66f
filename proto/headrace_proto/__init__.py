"""The protocol between headrace and headrace_server; the three packages have one version."""

__version__ = "1.0.0"
