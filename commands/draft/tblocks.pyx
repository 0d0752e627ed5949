# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""For readers that take a stream by the million: TSEEK and TBLOCKS.

TSEEK finds the n-th entry after an id, from the counts in the skiplist: how a reader cuts
a stream into parts without reading it. TBLOCKS hands out whole blocks in the form they have in a
snapshot (docs/formats.md). The server copies and adds a checksum, instead of encoding every entry;
the reader decodes with the code that reads snapshots, instead of making an object of every word.
"""

from libc.stdint cimport int64_t, uint64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.engine.ranges cimport take_end, take_start
from millstream.commands.runtime.replies cimport SLICE_BYTES, Encodable, Sliced
from millstream.encoding cimport Output, put_nil
from millstream.ids cimport EntryId, id_less, make_id, step_up
from millstream.storage.streams.stream cimport Stream

from millstream.commands.table.registry import command
from millstream.errors import NOT_INTEGER, SYNTAX, CommandError

cdef enum:
    PAGE_BYTES = 1048576
    # Picking them out takes the server's time before anything is sent.
    PAGE_BLOCKS_MAX = 16384
    FACTS = 9

NOT_POSITIVE = "ERR value is out of range, must be positive"


# ---------------------------------------------------------------- TSEEK

@command(
    "TSEEK", arity=4, flags="readonly fast", keys=(1, 1, 1), group="stream",
    summary="Finds the n-th entry after an ID.", syntax="key after-id n",
    complexity="O(log n), n the number of entries",
)
def tseek(Context ctx not None, Args args not None):
    cdef Stream stream
    cdef EntryId start
    cdef EntryId found
    cdef int64_t wanted
    cdef uint64_t before
    cdef uint64_t count
    args.pos = 2
    args.take_id(&start, True, 0)
    wanted = args.take_int()
    if wanted < 0:
        raise CommandError(NOT_INTEGER)
    stream = ctx.read_stream_at(&args.items[1])
    if stream is None or not step_up(&start):
        return [0, None]
    before = stream.rank_of(start.ms, start.seq)
    count = min(<uint64_t>wanted, stream.length - before)
    if count == 0:
        return [0, None]
    stream.nth(before + count - 1, &found)
    return [count, make_id(found.ms, found.seq, True)]


# ---------------------------------------------------------------- TBLOCKS

cdef uint64_t take_positive(Args args) except 0:
    cdef int64_t number = args.take_int()
    if number <= 0:
        raise CommandError(NOT_POSITIVE)
    return <uint64_t>number


@command(
    "TBLOCKS", arity=-4, flags="readonly", keys=(1, 1, 1), group="stream",
    summary="Returns the blocks that hold the entries between two IDs, page by page.",
    syntax="key start end [COUNT blocks] [BYTES bytes]",
    complexity="O(log n) to find the start and O(m) for the m bytes answered",
)
def tblocks(Context ctx not None, Args args not None):
    cdef BlockPage page = BlockPage.__new__(BlockPage)
    cdef uint64_t most = PAGE_BLOCKS_MAX
    cdef uint64_t size_bytes = PAGE_BYTES
    cdef Stream stream
    args.pos = 2
    take_start(args, &page.start, True)
    take_end(args, &page.end, True)
    while args.pos < args.count:
        if args.next_is(b"COUNT"):
            most = min(take_positive(args), <uint64_t>PAGE_BLOCKS_MAX)
        elif args.next_is(b"BYTES"):
            size_bytes = take_positive(args)
        else:
            raise CommandError(SYNTAX)
    stream = ctx.read_stream_at(&args.items[1])
    if stream is None:
        return None
    page.stream = stream
    if id_less(page.start.ms, page.start.seq, stream.head_ms, stream.head_seq):
        page.start.ms = stream.head_ms
        page.start.seq = stream.head_seq
    if id_less(stream.last_ms, stream.last_seq, page.end.ms, page.end.seq):
        page.end.ms = stream.last_ms
        page.end.seq = stream.last_seq
    page.blocks = []
    page.has_more = stream.next_blocks(
        page.start, page.end, most, size_bytes, page.blocks, &page.following)
    return page


cdef class BlockPage(Encodable):
    """Some blocks, and what a reader needs to know of the stream they come from. Encode it before
    anything changes the stream."""

    cdef int encode(self, Output out, int resp) except -1:
        cdef Py_ssize_t full_size = out.size + SLICE_BYTES
        cdef Py_ssize_t done = 0
        self.put_facts(out, resp)
        out.put_head(c'*', <uint64_t>len(self.blocks))
        while done < len(self.blocks) and out.size < full_size:
            out.put_bulk_bytes(self.blocks[done].to_bytes())
            done += 1
        if done < len(self.blocks):
            self.remainder = SlicedBlocks(self.blocks[done:])
        return 0

    cdef int put_facts(self, Output out, int resp) except -1:
        cdef Stream stream = self.stream
        if resp == 3:
            out.put_head(c'%', FACTS)
        else:
            out.put_head(c'*', 2 * FACTS)
        out.put_bulk_bytes(b"first-id")
        out.put_id(self.start.ms, self.start.seq, True)
        out.put_bulk_bytes(b"last-id")
        out.put_id(self.end.ms, self.end.seq, True)
        out.put_bulk_bytes(b"next-id")
        if self.has_more:
            out.put_id(self.following.ms, self.following.seq, True)
        else:
            put_nil(out, resp)
        out.put_bulk_bytes(b"length")
        out.put_head(c':', stream.length)
        out.put_bulk_bytes(b"entries-added")
        out.put(b":%d\r\n" % <int64_t>stream.entries_added)
        out.put_bulk_bytes(b"entries-evicted")
        out.put_head(c':', stream.entries_evicted)
        out.put_bulk_bytes(b"max-evicted-id")
        out.put_id(stream.max_evicted_ms, stream.max_evicted_seq, True)
        out.put_bulk_bytes(b"incarnation")
        out.put_head(c':', stream.incarnation)
        return out.put_bulk_bytes(b"blocks")

    cdef Sliced rest(self):
        return self.remainder


cdef class SlicedBlocks(Sliced):
    """The blocks of a page that were not sent yet, the next one last in the list."""

    def __init__(self, list blocks not None):
        self.blocks = blocks
        self.blocks.reverse()

    def next_slice(self) -> bytes:
        cdef Output out = Output()
        while self.blocks and out.size < SLICE_BYTES:
            out.put_bulk_bytes(self.blocks.pop().to_bytes())
        return out.take()
