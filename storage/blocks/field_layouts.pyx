# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The column of each field of an entry.

Entries of a stream mostly have the same field names, so the answer for a field-name set is computed
once and kept: a few sets by their bytes, those of the current block by their position.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from millstream.encoding cimport Slice
from millstream.storage.blocks.layout cimport Entry, next_name

cdef enum:
    LAYOUTS_MAX = 64
    SETS_IN_BLOCK_MAX = 31


cdef struct Names:
    # The field names of an entry, and a hash table of the indexes of distinct ones plus 1.
    const uint8_t** starts
    uint32_t* sizes
    uint32_t* table
    uint32_t slots


cdef bint begin_cache(LayoutCache* cache, const Slice* columns, int column_count,
                      bint keep_all) noexcept nogil:
    """Begin an empty cache; False when out of memory."""
    cache.columns = columns
    cache.column_count = column_count
    cache.keep_all = keep_all
    cache.layouts = <Layout*>calloc(LAYOUTS_MAX, sizeof(Layout))
    cache.seen = <const uint8_t**>calloc(SETS_IN_BLOCK_MAX, sizeof(void*))
    cache.seen_layout = <int*>calloc(SETS_IN_BLOCK_MAX, sizeof(int))
    return cache.layouts != NULL and cache.seen != NULL and cache.seen_layout != NULL


cdef void free_cache(LayoutCache* cache) noexcept nogil:
    cdef int i
    if cache.layouts:
        for i in range(LAYOUTS_MAX):
            free_layout(&cache.layouts[i])
    free(cache.layouts)
    free(cache.seen)
    free(cache.seen_layout)


cdef void free_layout(Layout* layout) noexcept nogil:
    free(layout.names)
    free(layout.column)
    free(layout.in_map)
    free(layout.kept_ends)
    free(layout.kept_names)
    memset(layout, 0, sizeof(Layout))


cdef Layout* layout_of(LayoutCache* cache, const Entry* entry) noexcept nogil:
    """The columns of an entry's field-name set; NULL when out of memory. The cache is searched by the
    position of the set in this block, then by its bytes."""
    cdef int i
    cdef Layout* layout
    for i in range(cache.seen_count):
        if cache.seen[i] == entry.names:
            return &cache.layouts[cache.seen_layout[i]]
    layout = find_layout(cache, entry)
    if layout != NULL and cache.seen_count < SETS_IN_BLOCK_MAX:
        cache.seen[cache.seen_count] = entry.names
        cache.seen_layout[cache.seen_count] = <int>(layout - cache.layouts)
        cache.seen_count += 1
    return layout


cdef Layout* find_layout(LayoutCache* cache, const Entry* entry) noexcept nogil:
    cdef int i
    cdef Layout* layout
    cdef uint32_t size = entry.names_size
    cdef uint32_t fields = entry.fields
    for i in range(cache.layout_count):
        layout = &cache.layouts[i]
        if (layout.fields == fields and layout.names_size == size and layout.plain == entry.plain
                and memcmp(layout.names, entry.names, size) == 0):
            return layout
    layout = next_layout(cache)
    layout.names = <uint8_t*>malloc(size + 1)
    layout.column = <int*>malloc(fields * sizeof(int))
    layout.in_map = <uint8_t*>malloc(fields)
    layout.kept_ends = <uint32_t*>malloc((<size_t>fields + 1) * 4)
    layout.kept_names = <uint8_t*>malloc(size + 1)
    if (layout.names == NULL or layout.column == NULL or layout.in_map == NULL
            or layout.kept_ends == NULL or layout.kept_names == NULL):
        free_layout(layout)
        return NULL
    memcpy(layout.names, entry.names, size)
    layout.plain = entry.plain
    layout.fields = fields
    layout.names_size = size
    if not describe(cache, layout):
        free_layout(layout)
        return NULL
    return layout


cdef Layout* next_layout(LayoutCache* cache) noexcept nogil:
    """A free layout; when all are used, the one that was made longest ago."""
    cdef int i
    if cache.layout_count < LAYOUTS_MAX:
        i = cache.layout_count
        cache.layout_count += 1
    else:
        i = cache.layout_next
        cache.layout_next = (i + 1) % LAYOUTS_MAX
        cache.seen_count = 0  # they may point to the layout that is removed
    free_layout(&cache.layouts[i])
    return &cache.layouts[i]


cdef bint describe(const LayoutCache* cache, Layout* layout) noexcept nogil:
    """Determine the column of each field; False when out of memory."""
    cdef Names names
    names.slots = 16
    while names.slots < 2 * <uint64_t>layout.fields:
        names.slots *= 2
    names.starts = <const uint8_t**>malloc(layout.fields * sizeof(void*))
    names.sizes = <uint32_t*>malloc(layout.fields * 4)
    names.table = <uint32_t*>calloc(names.slots, 4)
    cdef bint enough = names.starts != NULL and names.sizes != NULL and names.table != NULL
    if enough:
        find_columns(cache, layout, &names)
        keep_names(layout, &names)
    free(names.starts)
    free(names.sizes)
    free(names.table)
    return enough


cdef void find_columns(const LayoutCache* cache, Layout* layout, Names* names) noexcept nogil:
    """The loop runs from the last field to the first, because the last one of fields with the same
    name counts. A table of names makes this linear for entries with very many fields."""
    cdef const uint8_t* at = layout.names
    cdef Slice name
    cdef uint32_t i, slot
    cdef bint again
    for i in range(layout.fields):
        at = next_name(at, layout.plain, &name)
        names.starts[i] = <const uint8_t*>name.ptr
        names.sizes[i] = <uint32_t>name.size
    i = layout.fields
    while i > 0:
        i -= 1
        slot = slot_of(names, i)
        again = names.table[slot] != 0
        if not again:
            names.table[slot] = i + 1
        layout.column[i] = -1 if again else column_named(cache, names.starts[i], names.sizes[i])
        layout.in_map[i] = cache.keep_all or not again


cdef uint32_t slot_of(const Names* names, uint32_t i) noexcept nogil:
    """The slot of the table with the name of field i; an empty one if the name is not there yet."""
    cdef uint32_t slot = hash_of(names.starts[i], names.sizes[i]) & (names.slots - 1)
    cdef uint32_t other
    while names.table[slot]:
        other = names.table[slot] - 1
        if names.sizes[other] == names.sizes[i] and memcmp(
                names.starts[other], names.starts[i], names.sizes[i]) == 0:
            break
        slot = (slot + 1) & (names.slots - 1)
    return slot


cdef void keep_names(Layout* layout, const Names* names) noexcept nogil:
    """Put the names of the fields that are in the map one after the other."""
    cdef uint32_t i
    cdef uint32_t end = 0
    layout.kept_fields = 0
    layout.kept_ends[0] = 0
    for i in range(layout.fields):
        if layout.in_map[i]:
            memcpy(layout.kept_names + end, names.starts[i], names.sizes[i])
            end += names.sizes[i]
            layout.kept_fields += 1
            layout.kept_ends[layout.kept_fields] = end


cdef int column_named(const LayoutCache* cache, const uint8_t* name, Py_ssize_t size) noexcept nogil:
    """The column of the field with this name; -1 if there is none."""
    cdef int i
    for i in range(cache.column_count):
        if (cache.columns[i].ptr != NULL and cache.columns[i].size == size
                and memcmp(cache.columns[i].ptr, name, size) == 0):
            return i
    return -1


cdef inline uint32_t hash_of(const uint8_t* text, uint32_t size) noexcept nogil:
    """FNV-1a."""
    cdef uint32_t value = 2166136261
    cdef uint32_t i
    for i in range(size):
        value = (value ^ text[i]) * <uint32_t>16777619
    return value
