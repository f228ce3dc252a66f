"""Starts the front and the workers, restarts them, and answers for the whole server."""
