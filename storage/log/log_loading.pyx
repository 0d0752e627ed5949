# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Loads the saved blocks of a log."""

from libc.stdint cimport uint64_t

from millstream.storage.blocks.block cimport Block
from millstream.storage.blocks.layout cimport View, view_live_before, view_of
from millstream.storage.blocks.skiplist cimport SkipList
from millstream.storage.blocks.skiplist_pages cimport block_at
from millstream.storage.log.entry_log cimport EntryLog


cdef int load_blocks(EntryLog log, blocks, bint is_open) except -1:
    """Load saved blocks into a log whose `head` is set and which has no open block; is_open: the last block
    continues as the open block. ValueError when the blocks are inconsistent."""
    cdef Block block
    cdef View view
    cdef uint64_t hidden
    newest = blocks[len(blocks) - 1] if blocks else None
    last = None if log.sealed is None or not log.sealed.blocks else block_at(log.sealed.end()).last_id
    for block in blocks:
        if last is not None and block.first_id <= last:
            raise ValueError("its blocks are out of order")
        hidden = 0
        if last is None:
            view_of(block.head, &view)
            hidden = log.head_gone = view_live_before(&view, log.head_ms, log.head_seq)
        last = block.last_id
        if block.head.live <= hidden:
            raise ValueError("a block of it has no entry left")
        if is_open and block is newest:
            view_of(block.head, &view)
            if log.resume_tail(&view):
                break
        if log.sealed is None:
            log.sealed = SkipList.__new__(SkipList)
        log.sealed.push(block)
    if last is not None and last > log.last_id:
        raise ValueError("its last id is below its last entry")
    log.length = log.sealed_live() - log.head_gone
    if log.tail is not None:
        log.length += log.tail.live
    return 0


def add_blocks(EntryLog log not None, blocks, bint is_open) -> None:
    """Add saved blocks to a log that is being loaded, after those that it has (`load_blocks`)."""
    if log.has_tail():
        raise ValueError("its blocks follow an open one")
    load_blocks(log, blocks, is_open)
