"""A batch in a trainer's hands: its columns, and the states that are saved for it."""
