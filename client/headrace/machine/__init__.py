"""The pure machine that decides what a trainer asks of whom, and which batch comes next."""
