"""Waits: processes, sockets, deadlines."""
