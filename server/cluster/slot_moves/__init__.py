"""Slots that move from one shard to another while clients write."""
