"""All processes of a server share these: configuration, channels, and what they show to others."""
