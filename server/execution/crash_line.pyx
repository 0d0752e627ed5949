# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The line of a crash report that needs a handler in C: version, uptime and last command.

The handler runs on the thread that crashed, at any instruction. It allocates nothing, takes no lock
and calls only functions that are allowed in a handler of signals. It reads the name of the last
command where the request runner has it; nothing is recorded for it while commands run.
"""

from libc.string cimport memcpy, strlen
from posix.signal cimport sigaction, sigaction_t, sigemptyset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport getpid, write

from millstream.server.execution.executor cimport Executor
from millstream.server.execution.lookup cimport Row

cdef extern from "<signal.h>" nogil:
    enum:
        SA_NODEFER
        SA_RESETHAND
        SA_ONSTACK
        SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV
    int c_raise "raise"(int number)

cdef enum:
    LINE_MAX = 320
    VERSION_MAX = 40
    NAME_MAX = 64

cdef int[5] CRASHES = [SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL]
cdef sigaction_t[5] EARLIER
cdef bint IS_ON = False
cdef int DESCRIPTOR = -1
cdef char[VERSION_MAX + 1] VERSION
cdef timespec BEGUN
cdef Executor EXECUTOR = None


cdef struct Line:
    char[LINE_MAX] text
    Py_ssize_t size


cdef void put(Line* line, const char* text, Py_ssize_t size) noexcept nogil:
    if line.size + size <= LINE_MAX:
        memcpy(line.text + line.size, text, size)
        line.size += size


cdef void put_text(Line* line, const char* text) noexcept nogil:
    put(line, text, strlen(text))


cdef void put_number(Line* line, long number) noexcept nogil:
    cdef char[20] digits
    cdef int at = 20
    while True:
        at -= 1
        digits[at] = <char>(c'0' + number % 10)
        number //= 10
        if number == 0 or at == 0:
            break
    put(line, &digits[at], 20 - at)


cdef const char* name_of_signal(int number) noexcept nogil:
    if number == SIGSEGV:
        return "SIGSEGV"
    if number == SIGABRT:
        return "SIGABRT"
    if number == SIGBUS:
        return "SIGBUS"
    return "SIGFPE" if number == SIGFPE else "SIGILL"


cdef void put_last_command(Line* line) noexcept:
    cdef Row row = EXECUTOR.runner.row
    if row is None:
        put_text(line, "no command has run")
        return
    put_text(line, "the last command was ")
    put(line, <const char*>row.upper, min(row.size, <Py_ssize_t>NAME_MAX))


cdef void on_crash(int number) noexcept:
    """Write the line, and end the process by the same signal, whose default was restored."""
    cdef Line line
    cdef timespec now
    line.size = 0
    clock_gettime(CLOCK_MONOTONIC, &now)
    put_text(&line, "\nmillstream ")
    put_text(&line, VERSION)
    put_text(&line, " has crashed: ")
    put_text(&line, name_of_signal(number))
    put_text(&line, " after ")
    put_number(&line, now.tv_sec - BEGUN.tv_sec)
    put_text(&line, " seconds (process ")
    put_number(&line, getpid())
    put_text(&line, "); ")
    write(DESCRIPTOR, line.text, line.size)
    # The last part: a damaged heap may make it crash again.
    line.size = 0
    put_last_command(&line)
    put_text(&line, "\n")
    write(DESCRIPTOR, line.text, line.size)
    c_raise(number)


def begin(int descriptor, str version not None, Executor executor not None) -> None:
    """Write the line to this descriptor at a crash."""
    global IS_ON, DESCRIPTOR, EXECUTOR
    cdef bytes text = version.encode()[:VERSION_MAX]
    cdef sigaction_t action
    memcpy(VERSION, <const char*>text, len(text) + 1)
    DESCRIPTOR = descriptor
    EXECUTOR = executor
    if BEGUN.tv_sec == 0:
        clock_gettime(CLOCK_MONOTONIC, &BEGUN)
    action.sa_handler = <void (*)(int) noexcept nogil><void*>on_crash
    action.sa_flags = SA_NODEFER | SA_RESETHAND | SA_ONSTACK
    sigemptyset(&action.sa_mask)
    for at in range(5):
        sigaction(CRASHES[at], &action, NULL if IS_ON else &EARLIER[at])
    IS_ON = True


def end() -> None:
    """Restore the handlers before `begin`."""
    global IS_ON
    if IS_ON:
        for at in range(5):
            sigaction(CRASHES[at], &EARLIER[at], NULL)
        IS_ON = False
