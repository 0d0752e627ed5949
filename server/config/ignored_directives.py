"""Directives that are accepted for compatibility: they can be read and set, without any effect.

Configuration files of Redis, clients and test harnesses set them routinely, and an error would stop
these programs for no reason. The list is closed: most directives in it tune a feature that this
server does not have (lists, forks, lazy freeing). Those in `INSTEAD` ask for something that does
not happen here if they have another value than the default; the log says so. Directives with
guarantees that users may rely on (TLS, ACL files) do not belong here; they are refused.

A row: name, default text, the form of its values, and whether CONFIG SET may change it.
"""

from __future__ import annotations

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

# Forms: "yes" (yes or no), "text", "size" of memory, "hz", "foreground", (low, high) for an
# integer, or the words that are accepted.
Form = str | tuple[int, int] | list[str]
Row = tuple[str, str, Form, bool]

_NATURAL = (0, INT_MAX)
_LARGE = (0, LONG_MAX)

ACCEPTED: tuple[Row, ...] = (
    # Files and saving: there is one journal and one snapshot format, written without a fork.
    ("aof-rewrite-incremental-fsync", "yes", "yes", True),
    ("aof-timestamp-enabled", "no", "yes", True),
    ("aof-use-rdb-preamble", "yes", "yes", True),
    ("appenddirname", "appendonlydir", "text", False),
    ("appendfilename", "appendonly.aof", "text", False),
    ("dbfilename", "dump.rdb", "text", False),
    ("key-load-delay", "0", (-INT_MAX - 1, INT_MAX), True),
    ("no-appendfsync-on-rewrite", "no", "yes", True),
    ("rdb-del-sync-files", "no", "yes", True),
    ("rdb-key-save-delay", "0", (-INT_MAX - 1, INT_MAX), True),
    ("rdb-save-incremental-fsync", "yes", "yes", True),
    ("rdbchecksum", "yes", "yes", False),
    ("sanitize-dump-payload", "no", ["no", "yes", "clients"], True),
    # The process and its event loop.
    ("activerehashing", "yes", "yes", True),
    ("always-show-logo", "no", "yes", False),
    ("busy-reply-threshold", "5000", _LARGE, True),
    ("crash-memcheck-enabled", "yes", "yes", True),
    ("daemonize", "no", "foreground", False),
    ("dynamic-hz", "yes", "yes", True),
    ("enable-module-command", "no", ["no"], False),
    ("enable-protected-configs", "no", ["no"], False),
    ("hz", "10", "hz", True),
    ("io-threads", "1", (1, 128), False),
    ("io-threads-do-reads", "no", "yes", False),
    ("jemalloc-bg-thread", "yes", "yes", True),
    ("max-new-connections-per-cycle", "10", (1, 1000), True),
    ("proc-title-template", "{title} {listen-addr} {server-mode}", "text", True),
    ("propagation-error-behavior", "ignore", ["ignore", "panic", "panic-on-replicas"], True),
    ("set-proc-title", "yes", "yes", False),
    ("socket-mark-id", "0", _NATURAL, False),
    # Memory: no key is evicted, and freeing needs no settings.
    ("active-expire-effort", "1", (1, 10), True),
    ("lazyfree-lazy-eviction", "no", "yes", True),
    ("lazyfree-lazy-expire", "no", "yes", True),
    ("lazyfree-lazy-server-del", "no", "yes", True),
    ("lazyfree-lazy-user-del", "no", "yes", True),
    ("lazyfree-lazy-user-flush", "no", "yes", True),
    ("lfu-decay-time", "1", _NATURAL, True),
    ("lfu-log-factor", "10", _NATURAL, True),
    ("maxmemory-eviction-tenacity", "10", (0, 100), True),
    ("maxmemory-samples", "5", (1, 64), True),
    ("tls-session-cache-size", "20480", _NATURAL, True),
    ("tls-session-cache-timeout", "300", _NATURAL, True),
    ("tracking-table-max-keys", "1000000", _LARGE, True),
    # Types that do not exist here.
    ("hash-max-listpack-entries", "512", _LARGE, True),
    ("hash-max-listpack-value", "64", "size", True),
    ("hll-sparse-max-bytes", "3000", "size", True),
    ("locale-collate", "", "text", True),
    ("list-compress-depth", "0", _NATURAL, True),
    ("list-max-listpack-size", "-2", (-INT_MAX - 1, INT_MAX), True),
    ("set-max-intset-entries", "512", _LARGE, True),
    ("set-max-listpack-entries", "128", _LARGE, True),
    ("set-max-listpack-value", "64", "size", True),
    ("zset-max-listpack-entries", "128", _LARGE, True),
    ("zset-max-listpack-value", "64", "size", True),
    # Replicas: a full sync sends the base that is on the disk, and a replica applies effects. A
    # primary sends a beat every second, which no ping period undercuts, and the frames of a
    # millisecond together.
    ("repl-disable-tcp-nodelay", "no", "yes", True),
    ("repl-diskless-load", "disabled", ["disabled", "on-empty-db", "swapdb"], True),
    ("repl-diskless-sync", "yes", "yes", True),
    ("repl-diskless-sync-delay", "5", _NATURAL, True),
    ("repl-diskless-sync-max-replicas", "0", _NATURAL, True),
    ("repl-ping-replica-period", "10", (1, INT_MAX), True),
    ("replica-ignore-maxmemory", "yes", "yes", True),
    ("replica-ignore-disk-write-errors", "no", "yes", True),
    ("replica-lazy-flush", "no", "yes", True),
)

# What happens although these have another value than the default, as the end of a warning. The
# others only tune something, or promise less than this server does.
INSTEAD = {
    "appenddirname": "the data files have names of their own",
    "appendfilename": "the data files have names of their own",
    "dbfilename": "the data files have names of their own",
    "propagation-error-behavior": "a replica that cannot apply a frame gets a full sync",
    "rdb-del-sync-files": "a replica keeps the data of a full sync on its disk",
    "replica-ignore-disk-write-errors": "a replica without a working disk acknowledges no writes",
    "replica-ignore-maxmemory": "a replica evicts nothing itself; set maxmemory of its primary",
    "socket-mark-id": "connections are not marked, so no rule of a firewall can match the mark",
    "tls-session-cache-timeout": "OpenSSL decides how long sessions can be resumed",
}

# CONFIG GET shows these only if they are named in full: Redis has them for its own tests.
HIDDEN = frozenset(("key-load-delay", "rdb-key-save-delay"))

# Older names of directives; CONFIG GET shows both.
ALIASES = {
    "hash-max-ziplist-entries": "hash-max-listpack-entries",
    "hash-max-ziplist-value": "hash-max-listpack-value",
    "list-max-ziplist-size": "list-max-listpack-size",
    "lua-time-limit": "busy-reply-threshold",
    "repl-ping-slave-period": "repl-ping-replica-period",
    "min-slaves-max-lag": "min-replicas-max-lag",
    "min-slaves-to-write": "min-replicas-to-write",
    "slave-announce-ip": "replica-announce-ip",
    "slave-announce-port": "replica-announce-port",
    "slave-ignore-maxmemory": "replica-ignore-maxmemory",
    "slave-lazy-flush": "replica-lazy-flush",
    "slave-priority": "replica-priority",
    "slave-read-only": "replica-read-only",
    "slave-serve-stale-data": "replica-serve-stale-data",
    "slaveof": "replicaof",
    "zset-max-ziplist-entries": "zset-max-listpack-entries",
    "zset-max-ziplist-value": "zset-max-listpack-value",
}
