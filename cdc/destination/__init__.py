"""The destination database: offsets, targets, and writing changes and copies into them."""
