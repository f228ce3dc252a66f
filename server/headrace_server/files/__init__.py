"""Keeps files: written whole, mapped, listed, and what was found out about them."""
