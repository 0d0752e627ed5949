"""Data structures and files: blocks, streams, groups, keys. No asyncio here."""
