"""The text format of Prometheus: labels, numbers, samples and families.

It is written here and not by the official library, which takes 20 microseconds for a sample: the
values exist as counters already, and one page has tens of thousands of samples.
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from millstream.errors import readable

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABEL_MAX = 200  # bytes of UTF-8
DIGEST_BYTES = 8
CACHED_MAX = 20_000  # values
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")  # characters that parsers may refuse
SPECIAL = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Family(NamedTuple):
    """A metric: its name, type and meaning."""

    name: str
    kind: str
    meaning: str


def label(value: bytes | str) -> str:
    """A label's value, escaped. Bytes that are not UTF-8, and control characters, are written as
    ``\\xHH``. A value of more than LABEL_MAX bytes is cut, and a checksum of all of it is appended,
    so that different values stay different."""
    raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    if len(raw) <= LABEL_MAX:
        return _short(raw)
    digest = hashlib.blake2b(raw, digest_size=DIGEST_BYTES).hexdigest()
    return f"{_readable(_cut(raw))}...{digest}".translate(SPECIAL)


@lru_cache(CACHED_MAX)  # the same names come with every page
def _short(raw: bytes) -> str:
    return _readable(raw).translate(SPECIAL)


def _cut(raw: bytes) -> bytes:
    """The first LABEL_MAX bytes, without a part of a character at the end."""
    end = LABEL_MAX
    while end > LABEL_MAX - 3 and raw[end] & 0xC0 == 0x80:
        end -= 1
    return raw[:end]


def _readable(raw: bytes) -> str:
    """Text in which ``\\xHH`` always stands for one byte or control character of the value."""
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", readable(raw))


def labels(**values: bytes | str) -> str:
    """The labels of a sample in braces."""
    return "{" + ",".join(f'{name}="{label(value)}"' for name, value in values.items()) + "}"


def number(value: object) -> str | None:
    """A value of INFO as the text of a sample's value: a number, a percentage, or a state (`ok` is
    1, `err` is 0). None for anything else."""
    if isinstance(value, (int, float)):
        return str(int(value)) if isinstance(value, bool) else repr(value)
    text = str(value).removesuffix("%")
    text = {"ok": "1", "err": "0"}.get(text, text)
    try:
        float(text)
    except ValueError:
        return None
    return text


def histogram_lines(
    name: str, bounds_s: Sequence[float], cumulative: Sequence[int], sum_s: float
) -> Iterator[str]:
    """The samples of a histogram without labels."""
    for bound_s, count in zip(bounds_s, cumulative, strict=False):
        yield f'{name}_bucket{{le="{bound_s:g}"}} {count}\n'
    yield f'{name}_bucket{{le="+Inf"}} {cumulative[-1]}\n'
    yield f"{name}_sum {sum_s!r}\n"
    yield f"{name}_count {cumulative[-1]}\n"
