from libc.stdint cimport uint8_t, uint32_t

from millstream.encoding cimport Slice
from millstream.storage.blocks.layout cimport Entry


cdef struct Layout:
    uint32_t fields
    uint32_t names_size
    bint plain
    uint8_t* names
    # For each field: its column, whether it is in the map, and the end of its name in `kept`.
    int* column
    uint8_t* in_map
    uint32_t kept_fields
    uint32_t* kept_ends
    uint8_t* kept_names


cdef struct LayoutCache:
    # The requested columns: the names of those that are fields, NULL for others. keep_all: fields
    # with the same name are all in the map.
    const Slice* columns
    int column_count
    bint keep_all
    Layout* layouts
    int layout_count
    int layout_next
    # The sets of the current block by their position.
    const uint8_t** seen
    int* seen_layout
    int seen_count


cdef bint begin_cache(LayoutCache* cache, const Slice* columns, int column_count,
                      bint keep_all) noexcept nogil
cdef void free_cache(LayoutCache* cache) noexcept nogil
cdef Layout* layout_of(LayoutCache* cache, const Entry* entry) noexcept nogil
