from collections.abc import Sequence

from millstream.storage.blocks.block import Block
from millstream.storage.log.entry_log import EntryLog

def add_blocks(log: EntryLog, blocks: Sequence[Block], is_open: bool) -> None: ...
