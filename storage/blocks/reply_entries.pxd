from libc.stdint cimport int64_t, uint64_t

from millstream.encoding cimport Output
from millstream.entry_id cimport EntryId
from millstream.storage.blocks.layout cimport Entry, View


# An ID's text, whose milliseconds the next ID mostly has, too. Set size to 0 at first.
cdef struct IdText:
    uint64_t ms
    int size
    bint dotted
    char text[24]


# Which entries go into a reply: at most `limit` with start <= ID <= end, until the output has
# `full_size` bytes.
cdef struct Selection:
    EntryId start
    EntryId end
    uint64_t limit
    Py_ssize_t full_size


cdef int encode_entry(Output out, const View* view, const Entry* entry, IdText* id_text) except -1
cdef int64_t encode_forward(Output out, const View* view, const Selection* wanted, IdText* id_text,
                            EntryId* last) except -1
cdef int64_t encode_backward(Output out, const View* view, const Selection* wanted, IdText* id_text,
                             EntryId* last) except -1
