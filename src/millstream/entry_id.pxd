# An entry ID as storage keeps it: two numbers and their order. `ids` parses and formats the text.
from libc.stdint cimport UINT64_MAX, uint64_t


cdef struct EntryId:
    uint64_t ms
    uint64_t seq


cdef extern from *:
    """
    static inline int ms_id_less(uint64_t ams, uint64_t aseq, uint64_t bms, uint64_t bseq) {
        return ams < bms || (ams == bms && aseq < bseq);
    }
    """
    bint id_less "ms_id_less"(uint64_t ams, uint64_t aseq, uint64_t bms, uint64_t bseq) noexcept nogil


cdef inline bint step_up(EntryId* entry_id) noexcept nogil:
    """Change the ID to the next one; False when there is none."""
    if entry_id.seq < UINT64_MAX:
        entry_id.seq += 1
    elif entry_id.ms < UINT64_MAX:
        entry_id.ms += 1
        entry_id.seq = 0
    else:
        return False
    return True


cdef inline bint step_down(EntryId* entry_id) noexcept nogil:
    """Change the ID to the previous one; False when there is none."""
    if entry_id.seq > 0:
        entry_id.seq -= 1
    elif entry_id.ms > 0:
        entry_id.ms -= 1
        entry_id.seq = UINT64_MAX
    else:
        return False
    return True
