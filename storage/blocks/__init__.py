"""Packed blocks of entries, the skiplist of sealed blocks, and lazy freeing."""
