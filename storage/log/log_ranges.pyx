# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Ranges of a log: as elements of a reply, and as blocks."""

from libc.stdint cimport int64_t, uint64_t

from millstream.encoding cimport Output
from millstream.entry_id cimport EntryId, id_less
from millstream.storage.blocks.block cimport Block
from millstream.storage.blocks.layout cimport Entry, View, view_disk_size, view_of
from millstream.storage.blocks.prefetch cimport LINE_BYTES, fetch_line
from millstream.storage.blocks.reply_entries cimport (
    IdText, Selection, encode_backward, encode_entry, encode_forward,
)
from millstream.storage.blocks.skiplist_pages cimport Place, block_at, place_before, view_block
from millstream.storage.log.entry_log cimport EntryLog, Walk

cdef enum:
    FEW_ENTRIES = 32


cdef int64_t encode_range(EntryLog log, Output out, const Selection* wanted, bint dotted,
                          EntryId* last) except -1:
    """Encode the wanted entries as reply elements, oldest first. Return their number; `last`
    becomes the ID of the last one."""
    cdef Walk walk
    cdef IdText id_text
    cdef Selection rest = wanted[0]
    cdef uint64_t made
    id_text.size = 0
    id_text.dotted = dotted
    log.skip_hidden(&rest.start)
    log.walk_enter(&walk, rest.start)
    while walk.valid and rest.limit and out.size < rest.full_size and not id_less(
            rest.end.ms, rest.end.seq, walk.view.first_ms, walk.view.first_seq):
        made = encode_forward(out, &walk.view, &rest, &id_text, last)
        rest.limit -= made
        log.walk_block(&walk)
    return <int64_t>(wanted.limit - rest.limit)


cdef int64_t encode_reverse(EntryLog log, Output out, const Selection* wanted, bint dotted,
                            EntryId* last) except -1:
    """Like encode_range, newest first."""
    cdef IdText id_text
    cdef Place place
    cdef View view
    cdef Selection rest = wanted[0]
    id_text.size = 0
    id_text.dotted = dotted
    log.skip_hidden(&rest.start)
    if log.is_in_tail(rest.end):
        log.tail.view(&view)
        if view.count <= FEW_ENTRIES:
            # The whole block will be read. With very many streams, none of it is in the cache.
            fetch_line(view.entries)
            fetch_line(view.entries + LINE_BYTES)
            fetch_line(view.entries + 2 * LINE_BYTES)
            fetch_line(view.entries + 3 * LINE_BYTES)
        rest.limit -= encode_backward(out, &view, &rest, &id_text, last)
    if log.sealed is None:
        return <int64_t>(wanted.limit - rest.limit)
    place = log.sealed.seek(rest.end.ms, rest.end.seq, NULL)
    while place.page != NULL and rest.limit and out.size < rest.full_size:
        view_block(place, &view)
        if id_less(view.last_ms, view.last_seq, rest.start.ms, rest.start.seq):
            break
        rest.limit -= encode_backward(out, &view, &rest, &id_text, last)
        place = place_before(place)
    return <int64_t>(wanted.limit - rest.limit)


cdef int64_t encode_blocks(list blocks, Output out, const Selection* wanted, bint dotted,
                           bint reverse, EntryId* last) except -1:
    """Like encode_range or encode_reverse, from a list of blocks, of which the last one comes first.
    Blocks that are finished are removed from the list."""
    cdef IdText id_text
    cdef View view
    cdef Selection rest = wanted[0]
    id_text.size = 0
    id_text.dotted = dotted
    while rest.limit and blocks and out.size < rest.full_size:
        view_of((<Block>blocks[len(blocks) - 1]).head, &view)
        if reverse:
            rest.limit -= encode_backward(out, &view, &rest, &id_text, last)
        else:
            rest.limit -= encode_forward(out, &view, &rest, &id_text, last)
        if out.size < rest.full_size:
            blocks.pop()
    return <int64_t>(wanted.limit - rest.limit)


def blocks_between(EntryLog log not None, uint64_t ms, uint64_t seq, uint64_t end_ms,
                   uint64_t end_seq) -> list[Block]:
    """Immutable blocks with every entry with start <= ID <= end, in order. The open block is
    copied. The blocks may contain hidden entries (those below `first_kept`) and deleted
    ones."""
    cdef Walk walk
    cdef list found = []
    log.walk_start(&walk, EntryId(ms, seq))
    while walk.valid and not id_less(
            end_ms, end_seq, walk.view.first_ms, walk.view.first_seq):
        found.append(log.tail.freeze() if walk.in_tail else block_at(walk.place))
        log.walk_block(&walk)
    return found


def next_blocks(EntryLog log not None, start, stop, uint64_t most, uint64_t size_bytes) -> tuple:
    """The first blocks that may have entries with start <= ID <= stop, (ms, seq) each: at least
    one, at most `most`, and together at most size_bytes in their disk form. The open block is
    copied. Returns them and the first ID of the next block, None without one."""
    cdef Walk walk
    cdef uint64_t size = 0
    cdef list found = []
    cdef EntryId first
    cdef EntryId end
    first.ms, first.seq = start
    end.ms, end.seq = stop
    log.walk_start(&walk, first)
    if walk.valid and id_less(walk.view.last_ms, walk.view.last_seq, first.ms, first.seq):
        log.walk_block(&walk)
    while walk.valid and not id_less(
            end.ms, end.seq, walk.view.first_ms, walk.view.first_seq):
        size += view_disk_size(&walk.view)
        if found and (size > size_bytes or <uint64_t>len(found) >= most):
            return found, (walk.view.first_ms, walk.view.first_seq)
        found.append(log.tail.freeze() if walk.in_tail else block_at(walk.place))
        log.walk_block(&walk)
    return found, None


def encoded_entry(EntryLog log not None, uint64_t ms, uint64_t seq) -> bytes | None:
    """The undeleted entry with this ID as RESP; None when there is none."""
    cdef Output out
    cdef View view
    cdef Entry entry
    cdef IdText id_text
    if not log.find(EntryId(ms, seq), &view, &entry):
        return None
    id_text.size = 0
    id_text.dotted = False
    out = Output()
    encode_entry(out, &view, &entry, &id_text)
    return out.take()
