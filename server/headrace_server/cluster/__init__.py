"""Servers of one feed on several hosts, which an engine that exists places and restarts: Ray."""
