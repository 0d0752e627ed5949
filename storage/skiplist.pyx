# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A stream's sealed blocks: a doubly linked skiplist keyed by each block's first id.

It is the draft's structure. Appending and dropping happen at the ends and touch only the few levels
of one node; a seek takes O(log blocks) steps. Spans count undeleted entries, so the n-th entry and
the number of entries below an id are found on the same walk. Nodes are plain C memory holding one
reference to their block; a node of average height costs 80 bytes. The heights come from a generator
of our own with a fixed seed: the same history gives the same list.

The nodes of a long list lie many to a page, in slabs: the last steps of a seek are among neighbours,
and nodes between the blocks would cost a page each. A slab is given back with its last node; what is
removed from the middle leaves a hole until then.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from millstream.ids cimport id_less
from millstream.storage.block cimport Block

cdef extern from "<stdlib.h>" nogil:
    void* aligned_alloc(size_t alignment, size_t size)


cdef enum:
    SLAB_BYTES = 4096
    # Shorter lists take their nodes one by one.
    SLABS_FROM_BLOCKS = 64

# Bytes of the blocks of all lists.
cdef uint64_t all_data_bytes = 0

NO_MEMORY = "no memory for a block's place in its stream"


cdef inline size_t node_bytes(uint32_t height) noexcept:
    return sizeof(Node) + (height - 1) * sizeof(Level)


cdef Node* new_node(uint32_t height) except NULL:
    cdef Node* node = <Node*>malloc(node_bytes(height))
    if node == NULL:
        raise MemoryError(NO_MEMORY)
    node.in_slab = False
    return empty_node(node, height)


cdef Node* empty_node(Node* node, uint32_t height) noexcept:
    cdef uint32_t i
    node.ms = node.seq = 0
    node.block = NULL
    node.previous = NULL
    node.height = height
    for i in range(height):
        node.levels[i].next = NULL
        node.levels[i].next_ms = 0
        node.levels[i].span = 0
    return node


cdef inline void link(Level* level, Node* node) noexcept:
    level.next = node
    level.next_ms = 0 if node == NULL else node.ms


def sealed_bytes() -> int:
    """Bytes that the sealed blocks of all streams take, one that is in two streams twice. What a
    snapshot or a reply still holds of blocks that streams have let go of does not count."""
    return all_data_bytes


cdef class SkipList:
    """Blocks in id order. `live` and `blocks` are the totals; spans of last nodes are unused."""

    def __cinit__(self):
        cdef int i
        self.head = new_node(HEIGHT_MAX)
        self.height = 1
        self.seed = 2463534242
        for i in range(HEIGHT_MAX):
            self.last[i] = self.head
            self.last_rank[i] = 0

    def __dealloc__(self):
        global all_data_bytes
        cdef Node* node = self.head
        cdef Node* after
        all_data_bytes -= self.data_bytes
        while node != NULL:
            after = node.levels[0].next
            self.forget(node)
            node = after
        free(self.slab)

    cdef Node* take_node(self, uint32_t height) except NULL:
        """Memory for one more node."""
        cdef Node* node
        cdef size_t size = node_bytes(height)
        if self.blocks < SLABS_FROM_BLOCKS:
            return new_node(height)
        if self.slab == NULL or self.slab.used_bytes + size > SLAB_BYTES:
            self.leave_slab()
            self.slab = <Slab*>aligned_alloc(SLAB_BYTES, SLAB_BYTES)
            if self.slab == NULL:
                raise MemoryError(NO_MEMORY)
            self.slab.nodes = 0
            self.slab.used_bytes = sizeof(Slab)
        node = <Node*>(<char*>self.slab + self.slab.used_bytes)
        self.slab.used_bytes += size
        self.slab.nodes += 1
        node.in_slab = True
        return empty_node(node, height)

    cdef void leave_slab(self) noexcept:
        """The slab is full: it goes with its last node, or now if they are gone."""
        if self.slab != NULL and self.slab.nodes == 0:
            free(self.slab)
        self.slab = NULL

    cdef void forget(self, Node* node) noexcept:
        cdef Slab* slab
        if node.block != NULL:
            Py_DECREF(<object>node.block)
        if not node.in_slab:
            free(node)
            return
        slab = <Slab*>(<size_t>node & ~<size_t>(SLAB_BYTES - 1))
        slab.nodes -= 1
        if slab.nodes == 0 and slab != self.slab:
            free(slab)

    cdef Node* first(self) noexcept:
        return self.head.levels[0].next

    cdef Node* end(self) noexcept:
        """The last node, NULL when empty."""
        return NULL if self.last[0] == self.head else self.last[0]

    cdef uint32_t random_height(self) noexcept:
        """1 with probability 3/4, one more each time with 1/4."""
        cdef uint32_t height = 1
        cdef uint32_t bits
        self.seed ^= self.seed << 13
        self.seed ^= self.seed >> 17
        self.seed ^= self.seed << 5
        bits = self.seed
        while height < HEIGHT_MAX and (bits & 3) == 0:
            height += 1
            bits >>= 2
        return height

    cpdef int push(self, Block block) except -1:
        """Put a block behind the last one; its ids are above all others."""
        cdef uint32_t height = self.random_height()
        cdef Node* node = self.take_node(height)
        cdef uint32_t i
        Py_INCREF(block)
        node.block = <PyObject*>block
        node.ms = block.first_ms
        node.seq = block.first_seq
        node.previous = NULL if self.last[0] == self.head else self.last[0]
        if height > self.height:
            self.height = height
        for i in range(height):
            link(&self.last[i].levels[i], node)
            self.last[i].levels[i].span = self.live - self.last_rank[i]
            self.last[i] = node
            self.last_rank[i] = self.live
        self.live += block.live
        self.blocks += 1
        self.block_nodes += block.node_count
        self.count_bytes(block.data_size())
        return 0

    cdef inline void count_bytes(self, Py_ssize_t more) noexcept:
        global all_data_bytes
        self.data_bytes += <uint64_t>more
        all_data_bytes += <uint64_t>more

    cpdef int drop_head(self) except -1:
        """Take the first block away."""
        cdef Node* node = self.head.levels[0].next
        cdef Block block
        cdef uint64_t gone
        cdef uint32_t i
        if node == NULL:
            raise IndexError("no block to drop")
        block = block_of(node)
        gone = block.live
        for i in range(self.height):
            if i < node.height:
                link(&self.head.levels[i], node.levels[i].next)
                self.head.levels[i].span = node.levels[i].span
                if self.last[i] == node:
                    self.last[i] = self.head
                    self.last_rank[i] = 0
            if self.head.levels[i].next != NULL:
                self.head.levels[i].span -= gone
            if self.last[i] != self.head:
                self.last_rank[i] -= gone
        if node.levels[0].next != NULL:
            node.levels[0].next.previous = NULL
        self.live -= gone
        self.blocks -= 1
        self.block_nodes -= block.node_count
        self.count_bytes(-block.data_size())
        self.forget(node)
        return 0

    cdef SkipList cut_before(self, Node* node):
        """Take all blocks before a node, which is in the list, away in O(log blocks): a list of
        its own, of which nobody may ask but `free_blocks`. Until that is done the totals of blocks
        and bytes count what it has; `live` does not."""
        cdef SkipList part = SkipList.__new__(SkipList)
        cdef Node* at = self.head
        cdef Level* level
        cdef Node* path[HEIGHT_MAX]
        cdef uint64_t ranks[HEIGHT_MAX]
        cdef uint64_t rank = 0
        cdef int i
        for i in range(<int>self.height - 1, -1, -1):
            level = &at.levels[i]
            while level.next != NULL and id_less(level.next.ms, level.next.seq, node.ms, node.seq):
                rank += level.span
                at = level.next
                level = &at.levels[i]
            path[i] = at
            ranks[i] = rank
        part.head.levels[0].next = self.first() if path[0] != self.head else NULL
        rank += path[0].levels[0].span  # what is before the node
        for i in range(<int>self.height):
            self.begin_behind(i, path[i], ranks[i], rank)
        node.previous = NULL
        self.live -= rank
        self.leave_slab()  # it goes with its last node, whichever of the two lists that is in
        part.cut_from = self
        self.parts += 1
        return part

    cdef void begin_behind(self, int i, Node* last, uint64_t rank, uint64_t gone) noexcept:
        """Let a level begin behind `last`, of this rank, when so many entries go."""
        cdef Node* following = last.levels[i].next
        cdef uint64_t span = last.levels[i].span
        if last != self.head:
            last.levels[i].next = NULL
        link(&self.head.levels[i], following)
        if following == NULL:
            self.last[i] = self.head
            self.last_rank[i] = 0
        else:
            self.head.levels[i].span = rank + span - gone
            self.last_rank[i] -= gone

    cdef bint free_blocks(self, uint64_t most) except -1:
        """Free so many blocks of a list that is in use no more; False when none is left."""
        cdef SkipList whole = self if self.cut_from is None else self.cut_from
        cdef Node* node = self.first()
        cdef Block block
        while most and node != NULL:
            most -= 1
            block = block_of(node)
            whole.blocks -= 1
            whole.block_nodes -= block.node_count
            whole.count_bytes(-block.data_size())
            self.head.levels[0].next = node.levels[0].next
            self.forget(node)
            node = self.first()
        if node == NULL and self.cut_from is not None:
            whole.parts -= 1
            self.cut_from = None
        return node != NULL

    cdef Node* seek(self, uint64_t ms, uint64_t seq, uint64_t* rank) noexcept:
        """The last node whose first id is at most ms-seq, NULL when there is none.

        rank becomes the number of undeleted entries in the blocks before it.
        """
        cdef Node* node = self.head
        cdef Level* level
        cdef int i
        rank[0] = 0
        for i in range(<int>self.height - 1, -1, -1):
            level = &node.levels[i]
            while level.next != NULL and (level.next_ms < ms or (
                    level.next_ms == ms and level.next.seq <= seq)):
                rank[0] += level.span
                node = level.next
                level = &node.levels[i]
        return NULL if node == self.head else node

    cdef Node* seek_rank(self, uint64_t rank, uint64_t* before) noexcept:
        """The node that holds the undeleted entry of this rank (from 0), NULL when past the end.

        before becomes the number of undeleted entries in the blocks before it.
        """
        cdef Node* node = self.head
        cdef int i
        if rank >= self.live:
            return NULL
        before[0] = 0
        for i in range(<int>self.height - 1, -1, -1):
            while node.levels[i].next != NULL and before[0] + node.levels[i].span <= rank:
                before[0] += node.levels[i].span
                node = node.levels[i].next
        return node

    cdef void find_path(self, uint64_t ms, uint64_t seq, Node** path) noexcept:
        """Per level the last node whose first id is below ms-seq (the head included)."""
        cdef Node* node = self.head
        cdef Level* level
        cdef int i
        for i in range(<int>self.height - 1, -1, -1):
            level = &node.levels[i]
            while level.next != NULL and (level.next_ms < ms or (
                    level.next_ms == ms and level.next.seq < seq)):
                node = level.next
                level = &node.levels[i]
            path[i] = node

    cdef int replace(self, Node* node, Block block) except -1:
        """Put a block with the same ids but fewer undeleted entries in a node's place."""
        cdef Node* path[HEIGHT_MAX]
        cdef Block old = block_of(node)
        cdef uint64_t gone = old.live - block.live
        cdef Node* before
        cdef uint32_t i
        self.find_path(old.first_ms, old.first_seq, path)
        for i in range(self.height):
            before = node if i < node.height else path[i]
            if before.levels[i].next != NULL:
                before.levels[i].span -= gone
            self.lower_last(i, old, gone)
        Py_INCREF(block)
        node.block = <PyObject*>block
        self.live -= gone
        Py_DECREF(old)
        return 0

    cdef inline void lower_last(self, uint32_t level, Block changed, uint64_t gone) noexcept:
        """A level's last node stands behind the changed block: fewer entries are before it."""
        cdef Node* last = self.last[level]
        if last != self.head and id_less(changed.first_ms, changed.first_seq, last.ms, last.seq):
            self.last_rank[level] -= gone

    cdef int remove(self, Node* node) except -1:
        """Take a node out of the middle."""
        cdef Node* path[HEIGHT_MAX]
        cdef Block block = block_of(node)
        cdef uint64_t gone = block.live
        cdef uint32_t i
        if node == self.head.levels[0].next:
            return self.drop_head()
        self.find_path(block.first_ms, block.first_seq, path)
        for i in range(self.height):
            self.lower_last(i, block, gone)
            if i < node.height:
                if self.last[i] == node:
                    self.last[i] = path[i]
                    self.last_rank[i] -= path[i].levels[i].span
                link(&path[i].levels[i], node.levels[i].next)
                path[i].levels[i].span += node.levels[i].span
            if path[i].levels[i].next != NULL:
                path[i].levels[i].span -= gone
        if node.levels[0].next != NULL:
            node.levels[0].next.previous = node.previous
        self.live -= gone
        self.blocks -= 1
        self.block_nodes -= block.node_count
        self.count_bytes(-block.data_size())
        self.forget(node)
        return 0

    # ------------------------------------------------------------ for tests and tools

    def __len__(self) -> int:
        return self.blocks

    def __iter__(self):
        cdef Node* node = self.first()
        found = []
        while node != NULL:
            found.append(block_of(node))
            node = node.levels[0].next
        return iter(found)

    def find(self, uint64_t ms, uint64_t seq) -> tuple[Block, int] | None:
        """The last block whose first id is at most ms-seq and the entries before that block."""
        cdef uint64_t rank
        cdef Node* node = self.seek(ms, seq, &rank)
        return None if node == NULL else (block_of(node), rank)

    def find_rank(self, uint64_t rank) -> tuple[Block, int] | None:
        """The block that holds the entry of this rank and the entries before that block."""
        cdef uint64_t before
        cdef Node* node = self.seek_rank(rank, &before)
        return None if node == NULL else (block_of(node), before)

    def cut(self, uint64_t ms, uint64_t seq) -> SkipList | None:
        """`cut_before` the last block whose first id is at most ms-seq, if there is one."""
        cdef uint64_t rank
        cdef Node* node = self.seek(ms, seq, &rank)
        return None if node == NULL else self.cut_before(node)

    def free_some(self, uint64_t most) -> bool:
        """`free_blocks`."""
        return self.free_blocks(most)

    def delete(self, uint64_t ms, uint64_t seq) -> bool:
        """Delete one entry: its block is replaced, or removed with its last entry."""
        cdef uint64_t rank
        cdef Node* node = self.seek(ms, seq, &rank)
        cdef Block block
        if node == NULL:
            return False
        block = block_of(node).without(ms, seq)
        if block is None:
            return False
        if block.live:
            self.replace(node, block)
        else:
            self.remove(node)
        return True

    def check(self) -> None:
        """Raise AssertionError when links, order, spans or totals are wrong."""
        cdef Node* node
        cdef Node* before
        cdef uint64_t rank = 0
        cdef uint64_t count = 0
        cdef uint64_t nodes = 0
        cdef uint32_t i
        ranks = {}
        node = self.first()
        before = NULL
        while node != NULL:
            assert node.previous == before
            if before != NULL:
                assert block_of(before).last_id < block_of(node).first_id
            assert (node.ms, node.seq) == block_of(node).first_id
            ranks[<size_t>node] = rank
            rank += block_of(node).live
            count += 1
            nodes += block_of(node).node_count
            before = node
            node = node.levels[0].next
        assert rank == self.live
        assert self.parts or (count == self.blocks and nodes == self.block_nodes)
        assert self.end() == before
        for i in range(self.height):
            node = self.head
            while node.levels[i].next != NULL:
                here = 0 if node == self.head else ranks[<size_t>node]
                assert node.levels[i].span == ranks[<size_t>node.levels[i].next] - here
                assert node.levels[i].next_ms == node.levels[i].next.ms
                node = node.levels[i].next
            assert self.last[i] == node
            assert self.last_rank[i] == (0 if node == self.head else ranks[<size_t>node])
