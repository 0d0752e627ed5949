"""The destination database: positions, targets, and writing changes and copies into them."""
