"""Keyspace events: every event that subscribers can be notified of, with its class.

The class is a letter of notify-keyspace-events; the names, the letters and which command sends
which event are Redis'. An event that is not in this table cannot be sent.
"""

from __future__ import annotations

_NAMES = {
    b"$": b"append incrby incrbyfloat set setrange",
    b"c": b"type_changed",
    b"g": b"copy_to del expire move_from move_to persist rename_from rename_to restore",
    b"m": b"keymiss",
    b"n": b"new",
    b"o": b"overwritten",
    b"t": b"xadd xdel xgroup-create xgroup-createconsumer xgroup-delconsumer xgroup-destroy "
    b"xgroup-setid xsetid xtrim",
    b"x": b"expired",
}

EVENT_CLASSES = {name: letter for letter, names in _NAMES.items() for name in names.split()}
