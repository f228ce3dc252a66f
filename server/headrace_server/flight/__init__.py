"""Records which rows each batch held, replays batches, and leaves rows out."""
