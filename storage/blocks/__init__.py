"""Packed blocks of entries, the list that holds the sealed ones, and freeing them."""
