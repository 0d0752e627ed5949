"""The log of a stream: its entries in packed blocks, and how they leave it."""
