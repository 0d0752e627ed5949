"""What is kept, and how: blocks, streams, groups, keys, and their files. No asyncio here."""
