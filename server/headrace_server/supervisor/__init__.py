"""Starts the locator and the workers, restarts them, and answers for the whole server."""
