"""Who gets which batch, and what becomes of it: pure machines."""
