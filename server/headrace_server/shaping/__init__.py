"""Which rows make a batch: pure machines."""
