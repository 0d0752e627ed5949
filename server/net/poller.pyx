# cython: language_level=3, wraparound=False, initializedcheck=False
"""Waiting for requests on many sockets, and reading them, without a callback of the event loop for
each.

libuv, on which the event loop is built, has an epoll set of its own. The sockets of clients are in
another one, together with libuv's set. A hook that libuv calls before it waits (it calls that
"prepare") waits here instead, for as long as neither libuv nor a callback of the loop has anything
to do. For a request that leaves three system calls: wait, receive, send. What the event loop costs
in addition for each request (a callback, a bytes object, a context, a turn) is saved, and the kernel
need not look at the socket again before the next wait, because the sockets are in the set with
EPOLLET.

Only reading is done here. The transport remains the owner of the socket: it sends what does not fit,
closes the socket, and detects its end and its errors.

The functions of libuv are those in uvloop's module. If they are not there, or the loop is another
one, `make_poller` logs this and returns None, and transports read the sockets.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free
from posix.unistd cimport close

import logging

import uvloop.loop

from millstream.server.execution.executor cimport Executor
from millstream.server.net.connection cimport Connection

LOGGER = logging.getLogger("millstream")

cdef extern from "<dlfcn.h>" nogil:
    enum:
        RTLD_LAZY
    void* dlopen(const char* path, int flags)
    void* dlsym(void* library, const char* name)

cdef extern from "<sys/epoll.h>" nogil:
    enum:
        EPOLLET
        EPOLLIN
        EPOLLPRI
        EPOLLRDHUP
        EPOLL_CLOEXEC
        EPOLL_CTL_ADD
        EPOLL_CTL_DEL
    ctypedef union epoll_data_t:
        int fd
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event* event)
    int epoll_wait(int epfd, epoll_event* events, int most, int timeout_ms)

cdef extern from "<sys/socket.h>" nogil:
    enum:
        MSG_DONTWAIT
    ssize_t recv(int socket, void* data, size_t size, int flags)

cdef enum:
    # The kinds of libuv's handles, constant since its first version.
    UV_IDLE = 6
    UV_PREPARE = 9
    LIBUV_READY = -1  # in place of the number of a socket
    EVENTS_MAX = 1024
    RECEIVE_BYTES = 262144
    OWNER_BYTES = 16  # in front of a hook: the Poller that it belongs to

ctypedef int (*IntOfLoop)(void* loop) noexcept nogil
ctypedef void (*OfLoop)(void* loop) noexcept nogil
ctypedef void (*Callback)(void* handle) noexcept nogil
ctypedef int (*InitHandle)(void* loop, void* handle) noexcept nogil
ctypedef int (*StartHandle)(void* handle, Callback callback) noexcept nogil
ctypedef int (*StopHandle)(void* handle) noexcept nogil
ctypedef void (*OfHandle)(void* handle) noexcept nogil
ctypedef void (*CloseHandle)(void* handle, Callback callback) noexcept nogil
ctypedef size_t (*SizeOfHandle)(int kind) noexcept nogil

cdef IntOfLoop uv_backend_fd
cdef IntOfLoop uv_backend_timeout
cdef OfLoop uv_update_time
cdef SizeOfHandle uv_handle_size
cdef InitHandle uv_prepare_init
cdef StartHandle uv_prepare_start
cdef InitHandle uv_idle_init
cdef StartHandle uv_idle_start
cdef StopHandle uv_idle_stop
cdef OfHandle uv_unref
cdef CloseHandle uv_close


cdef void* found_function(void* library, const char* name) except NULL:
    cdef void* found = dlsym(library, name)
    if found == NULL:
        raise AttributeError(f"uvloop has no function {name.decode()}")
    return found


cdef int find_functions() except -1:
    """Find the functions of libuv. AttributeError if one is missing."""
    global uv_backend_fd, uv_backend_timeout, uv_update_time, uv_handle_size, uv_prepare_init
    global uv_prepare_start, uv_idle_init, uv_idle_start, uv_idle_stop, uv_unref, uv_close
    cdef bytes path = uvloop.loop.__file__.encode()
    cdef void* library = dlopen(path, RTLD_LAZY)
    if library == NULL:
        raise AttributeError("uvloop cannot be opened as a library")
    uv_backend_fd = <IntOfLoop>found_function(library, "uv_backend_fd")
    uv_backend_timeout = <IntOfLoop>found_function(library, "uv_backend_timeout")
    uv_update_time = <OfLoop>found_function(library, "uv_update_time")
    uv_handle_size = <SizeOfHandle>found_function(library, "uv_handle_size")
    uv_prepare_init = <InitHandle>found_function(library, "uv_prepare_init")
    uv_prepare_start = <StartHandle>found_function(library, "uv_prepare_start")
    uv_idle_init = <InitHandle>found_function(library, "uv_idle_init")
    uv_idle_start = <StartHandle>found_function(library, "uv_idle_start")
    uv_idle_stop = <StopHandle>found_function(library, "uv_idle_stop")
    uv_unref = <OfHandle>found_function(library, "uv_unref")
    uv_close = <CloseHandle>found_function(library, "uv_close")
    return 0


cdef void* new_handle(Poller owner, int kind) except NULL:
    """Memory for a handle of libuv. The handle's own field `data` stays NULL, because uvloop takes
    any other value for an object of its own."""
    cdef char* memory = <char*>calloc(1, OWNER_BYTES + uv_handle_size(kind))
    if memory == NULL:
        raise MemoryError
    (<void**>memory)[0] = <void*>owner
    return memory + OWNER_BYTES


cdef void wait_instead(void* handle) noexcept with gil:
    """Called by libuv before it waits."""
    cdef Poller poller = <Poller>(<void**>(<char*>handle - OWNER_BYTES))[0]
    try:
        poller.wait()
    except BaseException as error:
        poller.report(error)


cdef void poll_without_waiting(void* handle) noexcept nogil:
    """While this is active, libuv only looks at its own sockets and does not wait for them."""


cdef void free_handle(void* handle) noexcept nogil:
    free(<char*>handle - OWNER_BYTES)


def make_poller(loop, executor) -> Poller | None:
    """A Poller for this loop; None if it is not uvloop's, or if libuv is not as expected."""
    try:
        if not isinstance(loop, uvloop.loop.Loop):
            raise AttributeError("the event loop is not uvloop's")
        find_functions()
        return Poller(loop, executor)
    except (AttributeError, OSError) as error:
        LOGGER.warning("transports of the event loop read the sockets of clients, which is slower: %s",
                       error)
        return None


def raise_again(error) -> None:
    raise error


cdef class Poller:
    """Reads the sockets of the Connections that were added. `make_poller` makes it."""

    cdef void* uv_loop
    cdef object loop
    cdef Executor executor
    cdef int file_number  # of the set
    cdef list sockets  # Connection or None, by the number of its socket
    cdef Py_ssize_t members
    cdef list unread  # connections whose sockets may have more than was received
    cdef char* buffer
    cdef epoll_event[EVENTS_MAX] events
    cdef void* prepare
    cdef void* idle

    def __cinit__(self):
        self.file_number = -1

    def __init__(self, loop, Executor executor not None):
        cdef epoll_event libuv_is_ready
        capsule = uvloop.loop.libuv_get_loop_t_ptr(loop)
        self.uv_loop = PyCapsule_GetPointer(capsule, NULL)
        self.loop = loop
        self.executor = executor
        self.sockets = []
        self.unread = []
        self.file_number = epoll_create1(EPOLL_CLOEXEC)
        if self.file_number < 0:
            raise OSError(errno, "epoll_create1")
        libuv_is_ready.events = EPOLLIN
        libuv_is_ready.data.fd = LIBUV_READY
        if epoll_ctl(self.file_number, EPOLL_CTL_ADD, uv_backend_fd(self.uv_loop), &libuv_is_ready):
            raise OSError(errno, "epoll_ctl")
        self.buffer = <char*>calloc(1, RECEIVE_BYTES)
        if self.buffer == NULL:
            raise MemoryError
        self.idle = new_handle(self, UV_IDLE)
        try:
            self.prepare = new_handle(self, UV_PREPARE)
        except MemoryError:
            free_handle(self.idle)
            raise
        uv_prepare_init(self.uv_loop, self.prepare)
        uv_idle_init(self.uv_loop, self.idle)
        uv_unref(self.prepare)
        uv_unref(self.idle)
        uv_prepare_start(self.prepare, wait_instead)

    def __dealloc__(self):
        free(self.buffer)
        if self.file_number >= 0:
            close(self.file_number)

    def close(self) -> None:
        """Read no socket any more. The loop must run once more after this."""
        if self.prepare == NULL:
            return
        uv_close(self.prepare, free_handle)
        uv_close(self.idle, free_handle)
        self.prepare = self.idle = NULL
        self.members = 0
        close(self.file_number)
        self.file_number = -1

    # ------------------------------------------------------------ the sockets

    def add(self, Connection connection not None) -> bool:
        """Read this connection's socket from now on; False if that is not possible. Its transport is
        paused and has nothing to send. libuv would remove the socket from its own set only when
        that reports the socket, which it also does for bytes that are read here."""
        cdef int number = connection.file_number
        cdef epoll_event event
        event.events = EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLET
        event.data.fd = number
        if self.prepare == NULL or epoll_ctl(self.file_number, EPOLL_CTL_ADD, number, &event):
            return False
        epoll_ctl(uv_backend_fd(self.uv_loop), EPOLL_CTL_DEL, number, &event)
        while len(self.sockets) <= number:
            self.sockets.append(None)
        self.sockets[number] = connection
        self.members += 1
        return True

    def remove(self, Connection connection not None) -> None:
        """Do not read this connection's socket any more."""
        cdef int number = connection.file_number
        cdef epoll_event event
        if self.prepare == NULL:
            return
        epoll_ctl(self.file_number, EPOLL_CTL_DEL, number, &event)
        self.sockets[number] = None
        self.members -= 1

    # ------------------------------------------------------------ turns

    cdef int wait(self) except -1:
        """Serve the sockets until libuv or a callback of the loop has something to do. After that
        libuv must not wait, since its set lacks these sockets."""
        if self.prepare == NULL:
            return 0
        uv_idle_stop(self.idle)
        if self.members:
            try:
                self.serve_until_needed()
            finally:
                if self.members:
                    uv_idle_start(self.idle, poll_without_waiting)
        return 0

    cdef int serve_until_needed(self) except -1:
        """At least once, since callbacks of the loop may follow each other without a pause."""
        cdef int count
        cdef int timeout_ms
        cdef bint is_needed = False
        while self.members and not is_needed:
            uv_update_time(self.uv_loop)
            # 0 also if libuv's set lacks sockets that the loop wants to watch.
            timeout_ms = uv_backend_timeout(self.uv_loop)
            is_needed = timeout_ms == 0
            if is_needed or self.unread:
                count = epoll_wait(self.file_number, self.events, EVENTS_MAX, 0)
            else:
                with nogil:
                    count = epoll_wait(self.file_number, self.events, EVENTS_MAX, timeout_ms)
                is_needed = count <= 0  # a timer is due, or a signal has arrived
            if count > 0 or self.unread:
                is_needed = self.serve(count) or is_needed
        return 0

    cdef bint serve(self, int count) except -1:
        """Read the sockets that are ready, and run their requests; True if libuv has something to
        do."""
        cdef bint libuv_is_ready
        self.executor.in_turn = True  # the tick ends after the last of these requests
        try:
            libuv_is_ready = self.read_ready(count)
        except BaseException:
            self.executor.in_turn = False
            if self.executor.tick_scheduled:
                self.executor.tick_scheduled = False
                self.executor.schedule_tick()
            raise
        self.executor.in_turn = False
        if self.executor.tick_scheduled:
            self.executor.end_tick()
        return libuv_is_ready

    cdef bint read_ready(self, int count) except -1:
        cdef bint libuv_is_ready = False
        cdef list unread = self.unread
        cdef int place = 0
        cdef int number
        cdef Py_ssize_t done = 0
        if unread:
            self.unread = []
        try:
            while place < count:
                number = self.events[place].data.fd
                place += 1
                if number == LIBUV_READY:
                    libuv_is_ready = True
                elif self.sockets[number] is not None:
                    self.read(<Connection>self.sockets[number],
                              self.events[place - 1].events != EPOLLIN)
            while done < len(unread):
                done += 1
                if (<Connection>unread[done - 1]).polled:
                    self.read(<Connection>unread[done - 1], True)
        except BaseException:
            # The set does not report the other sockets again.
            while place < count:
                number = self.events[place].data.fd
                place += 1
                if number != LIBUV_READY and self.sockets[number] is not None:
                    self.unread.append(self.sockets[number])
            self.unread.extend(unread[done:])
            raise
        return libuv_is_ready

    cdef int read(self, Connection connection, bint has_more) except -1:
        """Receive bytes and run their requests. If there may be more, a further turn reads again:
        the set does not report a socket twice for the same bytes, nor its end after them. The
        transport handles the end.

        `recv` stops before urgent data of TCP (reported as EPOLLPRI), and after bytes that were sent
        to a Unix socket together with descriptors, so more bytes may follow a short result."""
        cdef ssize_t size = recv(connection.file_number, self.buffer, RECEIVE_BYTES, MSG_DONTWAIT)
        try:
            if size == RECEIVE_BYTES or (size > 0 and (has_more or connection.is_unix)) or (
                    size < 0 and errno == EINTR):
                self.unread.append(connection)
            if size > 0:
                connection.receive(self.buffer, size)
            elif size == 0 or (errno != EAGAIN and errno != EINTR):
                connection.read_by_transport()
        except Exception as error:
            connection.end(False)
            self.report(error)
        return 0

    cdef int report(self, error) except -1:
        """Do what the loop does with an exception of a callback: KeyboardInterrupt and SystemExit
        stop it."""
        if not isinstance(error, Exception):
            self.loop.call_soon(raise_again, error)
            return 0
        self.loop.call_exception_handler(
            {"message": "requests of a client failed", "exception": error})
        return 0
