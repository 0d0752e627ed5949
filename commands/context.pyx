# cython: language_level=3, boundscheck=False, wraparound=False
"""What a handler is given: the data, the time, the client, and where to record what it did.

Handlers take the time from `now_ms` and never from a clock, so a whole server runs under a fake
one. `server` is the outside as far as commands may see it (commands/outside.py has its protocol).
"""


cdef class Session:
    """What a server remembers of one client between commands."""

    def __init__(self, uint64_t id, str address="", str local_address="", uint64_t now_ms=0):
        self.id = id
        self.address = address
        self.local_address = local_address
        self.created_ms = now_ms
        self.last_active_ms = now_ms
        self.resp = 2
        self.name = b""
        self.lib_name = b""
        self.lib_version = b""
        self.last_command = None


cdef class Context:
    """Handed to every handler; one object a server, its fields set before each call.

    `db` is the session's selected database and `now_ms` the wall clock, read once per batch.
    `write_error` is why nothing may be changed now (None when it may), for commands that change
    something only in some of their forms. `may_block` is false inside a transaction. While waiting
    readers are served, `shared` keeps encoded replies for all readers of one append, and `remade`
    the groups, (db, key, name), that one of the readers has made anew; else both are None.
    """

    def __init__(self, Keyspace keyspace, Effects effects, server=None):
        self.keyspace = keyspace
        self.effects = effects
        self.server = server
        self.may_block = True
