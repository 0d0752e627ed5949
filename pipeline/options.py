"""The options of `spark.read.format("millstream")` and its kin, in one table.

Spark hands options over as texts with lower-cased names and drops none, so a misspelt one would
silently do nothing: every name is checked here, and the error says the nearest that there is. The
names of live reading follow Spark's Kafka source.
"""

import difflib
from collections.abc import Collection, Mapping

# What is done with the data; an option belongs to some of these.
SCAN = "reading a snapshot"
LIVE = "reading a server"
STREAM = "streaming from a server"
WRITE = "writing"
STREAM_WRITE = "streaming into a server"

_READS = (SCAN, LIVE, STREAM)
_LIVES = (LIVE, STREAM)
_WRITES = (WRITE, STREAM_WRITE)

# Every option by its name as documented.
OPTIONS: dict[str, tuple[str, ...]] = {
    # where
    "path": (SCAN,),
    "server": (*_LIVES, *_WRITES),
    "db": (*_READS, *_WRITES),
    "username": (*_LIVES, *_WRITES),
    "password": (*_LIVES, *_WRITES),
    "timeout": (*_LIVES, *_WRITES),
    # which entries
    "subscribe": _READS,
    "subscribePattern": _READS,
    "startId": (SCAN,),
    "endId": (SCAN,),
    "startingOffsets": _LIVES,
    "endingOffsets": (LIVE,),
    "startingTimestamp": _READS,
    "endingTimestamp": (SCAN, LIVE),
    "failOnDataLoss": _LIVES,
    # which columns
    "columns": _READS,
    "mode": _READS,
    # in which portions
    "splitBytes": (SCAN,),
    "minPartitions": _READS,
    "maxEntriesPerTrigger": (STREAM,),
    "maxEntriesPerPartition": _LIVES,
    # what was done
    "metricsPath": (SCAN,),
    # writing
    "key": _WRITES,
    "dedupeToken": (WRITE,),
    "sortRows": _WRITES,
    # Spark's own, which it hands on
    "checkpointLocation": (STREAM, STREAM_WRITE),
    "queryName": (STREAM_WRITE,),
}

_SPELLED = {name.lower(): name for name in OPTIONS}


class OptionError(ValueError):
    """An option that is unknown, out of place or of a wrong value; names it and says what fits."""


class Options:
    """The user's options for one purpose, checked; reads them as what they are.

    `purpose` is one of the constants above. Names are looked up in any case. The texts are kept as
    a plain dict, because readers travel to Spark's workers pickled.
    """

    def __init__(self, given: Mapping[str, str], purpose: str) -> None:
        self.purpose = purpose
        self._texts = {name.lower(): text for name, text in given.items()}
        for name in self._texts:
            _check_name(name, purpose)

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._texts

    def text(self, name: str) -> str | None:
        """The option's text, None when it is not given."""
        return self._texts.get(name.lower())

    def required(self, name: str) -> str:
        text = self.text(name)
        if text is None:
            raise OptionError(f"{self.purpose} needs the option {name!r}")
        return text

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        """One of `choices`, which are given in the case to return; read in any case."""
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

    def wrong(self, name: str, wanted: str) -> OptionError:
        """The error for a value that does not fit: `wanted` says what would."""
        return OptionError(f"option {name!r} is {self.text(name)!r}; it must be {wanted}")


def _check_name(name: str, purpose: str) -> None:
    spelled = _SPELLED.get(name)
    if name == "paths":  # what Spark makes of load([a, b])
        raise OptionError("load one data directory at a time, and put them together by union")
    if spelled is None:
        near = difflib.get_close_matches(
            name, [x for x in _SPELLED if purpose in OPTIONS[_SPELLED[x]]], 1, 0.5
        )
        hint = (
            f"; did you mean {_SPELLED[near[0]]!r}?" if near else f"; there are {_names(purpose)}"
        )
        raise OptionError(f"unknown option {name!r}{hint}")
    if purpose not in OPTIONS[spelled]:
        raise OptionError(
            f"option {spelled!r} does not belong to {purpose}; there are {_names(purpose)}"
        )


def _names(purpose: str) -> str:
    return ", ".join(name for name, purposes in OPTIONS.items() if purpose in purposes)
