"""The T commands."""
