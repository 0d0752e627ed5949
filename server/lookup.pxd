from libc.stdint cimport uint32_t, uint64_t

from millstream.commands.arguments cimport Args


cdef class Row:
    cdef readonly object command
    cdef object handler
    cdef readonly str name
    cdef bytes upper
    cdef uint64_t front
    cdef uint64_t back
    cdef Py_ssize_t size
    cdef Py_ssize_t arity
    cdef bint writes
    cdef bint open_to_all
    cdef dict subcommands
    cdef uint64_t calls
    cdef uint64_t nanoseconds
    cdef uint64_t rejected
    cdef uint64_t failed
    cdef bint top


cdef class Table:
    cdef list rows
    cdef list slots
    cdef uint32_t mask

    cdef Row find(self, Args args, Row likely)


cdef str unknown_command(Args args)
