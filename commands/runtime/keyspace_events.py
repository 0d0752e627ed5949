"""Keyspace events: the letters of notify-keyspace-events, and every event with its class.

The class is a letter; the names, the letters and which command sends which event are Redis'. An
event that is not in this table cannot be sent.
"""

from __future__ import annotations

CHANNELS = "KE"
"""The letters that name a channel instead of a class: of the key, of the event."""
LETTERS = f"g$lshzxe{CHANNELS}tmdnoc"
"""Every letter but A, in the order of the error of CONFIG SET."""
NOT_OF_ALL = f"noc{CHANNELS}m"
"""The letters that A does not stand for, in the order in which CONFIG GET shows them."""
OF_ALL = "".join(letter for letter in LETTERS if letter not in NOT_OF_ALL)

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
