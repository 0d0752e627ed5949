# cython: language_level=3
"""System calls about the space of files, which Python does not offer. ctypes would take longer to load
than any other library of a start.
"""

cdef extern from *:
    """
    #include <errno.h>
    #include <fcntl.h>

    #ifdef __linux__
    static int allocate_kept(int descriptor, off_t offset, off_t size) {
        return fallocate(descriptor, FALLOC_FL_KEEP_SIZE, offset, size) ? errno : 0;
    }
    static void write_back(int descriptor) {
        (void)sync_file_range(descriptor, 0, 0, SYNC_FILE_RANGE_WRITE);
    }
    #else
    static int allocate_kept(int descriptor, off_t offset, off_t size) { return ENOSYS; }
    static void write_back(int descriptor) {}
    #endif
    """
    int allocate_kept(int descriptor, long long offset, long long size) nogil
    void write_back(int descriptor) nogil


def allocate(int descriptor, long long offset, long long size_bytes):
    """Reserve space on the disk for a part of a file, without a change of its size. Returns 0, or the
    number of the error."""
    cdef int number
    with nogil:
        number = allocate_kept(descriptor, offset, size_bytes)
    return number


def begin_writing(int descriptor):
    """Begin to write everything to the disk, if the system can do that. Errors are those of the sync
    that follows."""
    with nogil:
        write_back(descriptor)
