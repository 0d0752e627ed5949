"""Masks of the differences that are allowed when a library asks two servers the same.

Times that pass, the figures of an implementation's own structures, and fields that the older of
the two does not have: what it does have must be there and be the same.
"""

from __future__ import annotations

from typing import Any

# As the server names them, and as redis-py and node-redis name what XPENDING gives without names.
PASSING = {
    "active-time",
    "delivery-time",
    "idle",
    "inactive",
    "millisecondsSinceLastDelivery",
    "radix-tree-keys",
    "radix-tree-nodes",
    "seen-time",
    "time_since_delivered",
}
A_MOMENT_MS = 10**12  # a number from here on is the time of day


def differences(ours: Any, theirs: Any, where: str = "reply") -> list[str]:
    """The places at which our reply lacks or changes parts of theirs; one line each."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        lines = [f"{where}: no {name!r} in {ours!r}" for name in theirs if name not in ours]
        return lines + [
            line
            for name, value in theirs.items()
            if name in ours and text(name) not in PASSING
            for line in differences(ours[name], value, f"{where}.{text(name)}")
        ]
    if isinstance(ours, (list, tuple)) and type(ours) is type(theirs) and len(ours) == len(theirs):
        return [
            line
            for index, (our, their) in enumerate(zip(ours, theirs, strict=True))
            for line in differences(our, their, f"{where}[{index}]")
        ]
    if is_moment(ours) and is_moment(theirs):
        return []
    same = type(ours) is type(theirs) and ours == theirs
    return [] if same else [f"{where}: ours {ours!r}, Redis' {theirs!r}"]


def is_moment(value: Any) -> bool:
    return isinstance(value, int) and value >= A_MOMENT_MS


def text(name: Any) -> str:
    """A field's name; clients give it as bytes or as text, by protocol and method."""
    return name.decode() if isinstance(name, bytes) else str(name)


def named_fields(reply: Any) -> Any:
    """`[name, value, name, value]`, as RESP2 gives a map, as a dict; all the way down."""
    if not isinstance(reply, list):
        return reply
    if len(reply) % 2 == 0 and reply and reply[0] in ("length", "name", "pel-count"):
        return {name: named_fields(value) for name, value in zip(*[iter(reply)] * 2, strict=True)}
    return [named_fields(element) for element in reply]
