"""The options for reading and writing with `format("millstream")`, in one table.

Spark passes all options as texts with lower-case names. A misspelled option would have no
effect, so every name is checked here, and the error suggests the nearest valid name. The
names of live reading follow Spark's Kafka source.
"""

import difflib
import re
from collections.abc import Collection, Mapping

from millstream.server_url import SCHEMES, split_url

# The purposes; each option belongs to some of them.
SCAN = "reading a snapshot"
LIVE = "reading a server"
STREAM = "streaming from a server"
WRITE = "writing"
STREAM_WRITE = "streaming into a server"

READS = (SCAN, LIVE, STREAM)
_LIVES = (LIVE, STREAM)
_WRITES = (WRITE, STREAM_WRITE)

# Every option by its name as documented.
OPTIONS: dict[str, tuple[str, ...]] = {
    # where
    "path": (SCAN,),
    "server": (*_LIVES, *_WRITES),
    "db": (*READS, *_WRITES),
    "username": (*_LIVES, *_WRITES),
    "password": (*_LIVES, *_WRITES),
    "timeout": (*_LIVES, *_WRITES),
    # which entries
    "subscribe": READS,
    "subscribePattern": READS,
    "startId": (SCAN,),
    "endId": (SCAN,),
    "startingOffsets": _LIVES,
    "endingOffsets": (LIVE,),
    "startingTimestamp": READS,
    "endingTimestamp": (SCAN, LIVE),
    "startingOffsetsByTimestamp": _LIVES,
    "endingOffsetsByTimestamp": (LIVE,),
    "failOnDataLoss": _LIVES,
    "replicaLagTimeout": _LIVES,
    # which columns
    "columns": READS,
    "mode": READS,
    # how reading is divided
    "splitBytes": (SCAN,),
    "minPartitions": READS,
    "maxEntriesPerTrigger": (STREAM,),
    "minOffsetsPerTrigger": (STREAM,),
    "maxTriggerDelay": (STREAM,),
    "maxEntriesPerPartition": _LIVES,
    # reports
    "metricsPath": (SCAN,),
    # writing
    "key": _WRITES,
    "dedupeToken": (WRITE,),
    "sortRows": _WRITES,
    # Spark's own options, which Spark passes on
    "checkpointLocation": (STREAM, STREAM_WRITE),
    "queryName": (STREAM_WRITE,),
}

# Synonyms; the first is the name in Spark's Kafka source.
_OTHER_NAMES = {
    "maxOffsetsPerTrigger": "maxEntriesPerTrigger",
    "minEntriesPerTrigger": "minOffsetsPerTrigger",
}

_SPELLED = {name.lower(): name for name in OPTIONS}
_MEANT = {name.lower(): meant for name, meant in _OTHER_NAMES.items()}
_WRITTEN = _SPELLED | {name.lower(): name for name in _OTHER_NAMES}

# Durations in Spark's notation; a number alone is milliseconds.
_DURATION = re.compile(r"(\d{1,15})\s*([a-z]*)", re.ASCII)
_UNITS_MS = {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}
_UNITS_MS |= {"": 1, "d": 86_400_000}

_BAD_URL = (
    "option 'server' cannot be read as redis://user:password@host:port/db. Characters such as / and"
    " # in a password are written %2F and %23, or give it as option 'password'"
)


class OptionError(ValueError):
    """An unknown or misplaced option, or a wrong value. The text names it and says what is
    valid."""


class SourceOptions:
    """The user's options for one purpose, checked, with a getter for each type of value.

    `purpose` is one of the constants above. Names are not case-sensitive. The texts are kept in a
    plain dict, because readers are pickled for Spark's workers.
    """

    def __init__(self, given: Mapping[str, str], purpose: str) -> None:
        self.purpose = purpose
        self._texts: dict[str, str] = {}
        self._written: dict[str, str] = {}
        for name, text in given.items():
            self._take(name.lower(), text)

    def _take(self, written: str, text: str) -> None:
        name = _MEANT.get(written, written).lower()
        _check_name(name, self.purpose)
        if name in self._texts:
            raise OptionError(
                f"options {_WRITTEN[self._written[name]]!r} and {_WRITTEN[written]!r} are the same"
                " option: give only one"
            )
        self._texts[name] = text
        self._written[name] = written

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._texts

    def text(self, name: str) -> str | None:
        """The option's text; None when the option is not given."""
        return self._texts.get(name.lower())

    def required(self, name: str) -> str:
        text = self.text(name)
        if text is None:
            raise OptionError(f"{self.purpose} needs the option {name!r}")
        return text

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        """The matching one of `choices`; case does not matter."""
        text = self.text(name)
        if text is None:
            return default
        for choice in choices:
            if text.strip().lower() == choice.lower():
                return choice
        raise self.wrong(name, f"one of {', '.join(choices)}")

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def integer(self, name: str, default: int, minimum: int, maximum: int) -> int:
        text = self.text(name)
        if text is None:
            return default
        try:
            number = int(text)
        except ValueError:
            number = minimum - 1
        if not minimum <= number <= maximum:
            raise self.wrong(name, f"a whole number from {minimum} to {maximum}")
        return number

    def duration_ms(self, name: str, default: int) -> int:
        """A duration with its unit, such as `15m`."""
        text = self.text(name)
        if text is None:
            return default
        match = _DURATION.fullmatch(text.strip().lower())
        if match is None or match[2] not in _UNITS_MS:
            raise self.wrong(name, "a time such as 500ms, 30s, 15m, 2h or 1d")
        return int(int(match[1]) * _UNITS_MS[match[2]])

    def name_of(self, name: str) -> str:
        """The name under which the user gave the option; its own name if it was not given."""
        return _WRITTEN[self._written.get(name.lower(), name.lower())]

    def wrong(self, name: str, wanted: str) -> OptionError:
        """The error for an invalid value; `wanted` describes valid values."""
        shown = self.name_of(name)
        return OptionError(f"option {shown!r} is {self.text(name)!r}; it must be {wanted}")


def belonging(given: Mapping[str, str], purposes: Collection[str]) -> dict[str, str]:
    """The options of a table that belong to one of these purposes. OptionError names an option that
    does not exist."""
    found = {}
    for name, text in given.items():
        spelled = _SPELLED.get(_MEANT.get(name.lower(), name).lower())
        if spelled is None:
            raise _unknown(name.lower(), list(OPTIONS))
        if not set(OPTIONS[spelled]).isdisjoint(purposes):
            found[name] = text
    return found


def _unknown(name: str, names: list[str]) -> OptionError:
    near = difflib.get_close_matches(name, [one.lower() for one in names], 1, 0.5)
    hint = f"; did you mean {_SPELLED[near[0]]!r}?" if near else f"; there are {', '.join(names)}"
    return OptionError(f"unknown option {name!r}{hint}")


def _check_name(name: str, purpose: str) -> None:
    spelled = _SPELLED.get(name)
    if name == "paths":  # the option that Spark passes for load([a, b])
        raise OptionError("load one data directory at a time, and combine them with union")
    names = [one for one, purposes in OPTIONS.items() if purpose in purposes]
    if spelled is None:
        raise _unknown(name, names)
    if purpose not in OPTIONS[spelled]:
        raise OptionError(
            f"option {spelled!r} does not belong to {purpose}; there are {', '.join(names)}"
        )


def check_server_url(url: str) -> None:
    """OptionError for an invalid URL. The text omits the URL, which may contain a password."""
    if url.partition("://")[0] not in SCHEMES:
        raise OptionError(
            "option 'server' must be a URL such as redis://localhost:6455 (rediss: with TLS)"
        )
    try:
        split_url(url)
    except ValueError:
        raise OptionError(_BAD_URL) from None
