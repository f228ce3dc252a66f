"""The protocol between headrace and headrace_server: one version for all three."""

__version__ = "0.1.0"
