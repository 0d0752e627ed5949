"""Checks of arguments: each error names the wrong argument and the valid values."""

from __future__ import annotations

import math
from collections.abc import ItemsView, Mapping
from typing import Any

DURATION_MAX_S = 2**50
BATCH_MAX = 2**31 - 1
INT_MAX = 2**63 - 1
TIMEOUT_MAX_S = 1_000_000_000
"""The system cannot wait for any length of time."""
NAME_MAX_BYTES = 1024
"""Of a writer, as the server accepts it."""


def number(name: str, value: Any) -> float:
    """A number that is not NaN; infinity is one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} must be a number of seconds, not {value!r}")
    if type(value) is int and abs(value) > INT_MAX:  # not every int is a float
        raise ValueError(f"{name} must be a number of seconds, and this one is too large")
    if math.isnan(value):
        raise ValueError(f"{name} must be a number of seconds, not {value!r}")
    return value


def whole(name: str, value: Any, most: int | None = None) -> int:
    """A whole number from 1."""
    if type(value) is not int or value < 1 or (most is not None and value > most):
        limit = "" if most is None else f" to {most:,}"
        raise ValueError(f"{name} must be a number from 1{limit}, not {value!r}")
    return int(value)


def duration_s(name: str, seconds: Any) -> float:
    """Seconds, as many as the server can count in milliseconds."""
    if not 0 <= number(name, seconds) < DURATION_MAX_S:
        raise ValueError(f"{name} must be a number of seconds from 0 to 2**50 - 1, not {seconds!r}")
    found: float = seconds
    return found


def duration_ms(name: str, seconds: Any) -> int:
    """Seconds as whole milliseconds. 0 has another meaning than a very short time, so a time that
    would be rounded to 0 is refused."""
    milliseconds = round(duration_s(name, seconds) * 1000)
    if seconds and not milliseconds:
        raise ValueError(f"{name} must be 0 or at least 0.001 seconds, not {seconds!r}")
    return milliseconds


def key(what: str, value: Any) -> str | bytes:
    """The name of something on the server."""
    if not isinstance(value, (str, bytes)):
        raise ValueError(f"{what} must be text or bytes, not {value!r}")
    return value


def name(what: str, value: Any) -> str | bytes:
    """The name of something on the server. The server accepts an empty one, as Redis does: here it
    is most likely a variable that was not set."""
    if not key(what, value):
        raise ValueError(f"{what} must not be empty")
    found: str | bytes = value
    return found


def writer_name(value: Any) -> str | bytes:
    found = key("the name of a writer", value)
    size = len(found if isinstance(found, bytes) else found.encode("utf-8", "surrogateescape"))
    if not 1 <= size <= NAME_MAX_BYTES:
        raise ValueError(
            f"the name of a writer must have from 1 to {NAME_MAX_BYTES:,} bytes, not {size:,}"
        )
    return found


def timeout_s(name: str, value: Any) -> float | None:
    """The time that a call waits, None without a limit."""
    if value is None:
        return None
    seconds = number(name, value)
    return None if seconds > TIMEOUT_MAX_S else max(0.0, seconds)


def block_ms(value: Any) -> int:
    """The time that a command waits, in whole milliseconds."""
    if type(value) is not int or not 0 <= value <= INT_MAX:
        raise ValueError(f"the time to wait must be a number of ms from 0 on, not {value!r}")
    return int(value)


def batch(value: Any) -> int:
    """The number of entries that are requested at once."""
    return whole("batch", value, BATCH_MAX)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, not {value!r}")
    return value


def listed(name: str, value: Any) -> Any:
    """A list or a tuple."""
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{name} must be a list or a tuple, not {value!r}")
    return value


def items(streams: Any) -> ItemsView[Any, Any]:
    """The keys of a mapping of streams, with what belongs to each."""
    if not isinstance(streams, Mapping):
        raise ValueError(f"streams must be a mapping, not {streams!r}")
    return streams.items()


def function(name: str, value: Any) -> Any:
    """A function, or None."""
    if value is not None and not callable(value):
        raise ValueError(f"{name} must be a function or None, not {value!r}")
    return value
