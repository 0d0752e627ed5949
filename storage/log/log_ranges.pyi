from millstream.storage.blocks.block import Block
from millstream.storage.log.entry_log import EntryLog

def blocks_between(log: EntryLog, ms: int, seq: int, end_ms: int, end_seq: int) -> list[Block]: ...
def next_blocks(
    log: EntryLog, start: tuple[int, int], stop: tuple[int, int], most: int, size_bytes: int
) -> tuple[list[Block], tuple[int, int] | None]: ...
