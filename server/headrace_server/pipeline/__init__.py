"""The builder that users write, and the declaration it yields."""
