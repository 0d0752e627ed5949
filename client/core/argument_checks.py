"""Checks of arguments: each error names the wrong argument and the valid values."""

from __future__ import annotations

import math
from typing import Any

DURATION_MAX_S = 2**50
BATCH_MAX = 2**31 - 1
NAME_MAX_BYTES = 1024
"""Of a writer, as the server accepts it."""


def number(name: str, value: Any) -> float:
    """A number that is not NaN; infinity is one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise ValueError(f"{name} must be a number of seconds, not {value!r}")
    return value


def whole(name: str, value: Any, most: int | None = None) -> int:
    """A whole number from 1."""
    if type(value) is not int or value < 1 or (most is not None and value > most):
        limit = "" if most is None else f" to {most:,}"
        raise ValueError(f"{name} must be a number from 1{limit}, not {value!r}")
    return int(value)


def duration_ms(name: str, seconds: Any) -> int:
    """Seconds as whole milliseconds. 0 has another meaning than a very short time, so a time that
    would be rounded to 0 is refused."""
    if not 0 <= number(name, seconds) < DURATION_MAX_S:
        raise ValueError(f"{name} must be a number of seconds from 0 on, not {seconds!r}")
    milliseconds: int = round(seconds * 1000)
    if seconds and not milliseconds:
        raise ValueError(f"{name} must be 0 or at least 0.001 seconds, not {seconds!r}")
    return milliseconds


def key(what: str, value: Any) -> str | bytes:
    """The name of something on the server."""
    if not isinstance(value, (str, bytes)):
        raise ValueError(f"{what} must be text or bytes, not {value!r}")
    return value


def writer_name(value: Any) -> str | bytes:
    name = key("the name of a writer", value)
    size = len(name if isinstance(name, bytes) else name.encode("utf-8", "surrogateescape"))
    if not 1 <= size <= NAME_MAX_BYTES:
        raise ValueError(
            f"the name of a writer must have from 1 to {NAME_MAX_BYTES:,} bytes, not {size:,}"
        )
    return name


def batch(value: Any) -> int:
    """The number of entries that are requested at once."""
    return whole("batch", value, BATCH_MAX)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, not {value!r}")
    return value


def function(name: str, value: Any) -> Any:
    """A function, or None."""
    if value is not None and not callable(value):
        raise ValueError(f"{name} must be a function or None, not {value!r}")
    return value
