"""Files: written whole, mapped, listed, and cached facts about them."""
