"""The X commands."""
