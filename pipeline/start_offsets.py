"""The begin and the end of reading without a checkpoint: the options `startingOffsets`,
`endingOffsets`, `startingTimestamp`, `endingTimestamp`, `startingOffsetsByTimestamp` and
`endingOffsetsByTimestamp`, as in Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.pipeline.positions import (
    FIRST,
    LARGEST,
    Id,
    PositionError,
    Positions,
    id_text,
    key_text,
    named_positions,
    named_times,
)
from millstream.pipeline.range_plan import Losses
from millstream.pipeline.selection import before, take_time
from millstream.pipeline.server_connection import ServerConnection
from millstream.pipeline.source_options import OptionError, SourceOptions
from millstream.pipeline.stream_counters import ALL, StreamChoice, StreamCounters, seek

EARLIEST, LATEST = "earliest", "latest"


class Bound:
    """One end of the entries to read. `name` is `starting` or `ending`; `default` applies to
    streams that the option does not name."""

    def __init__(self, options: SourceOptions, name: str, default: str) -> None:
        self.option = f"{name}Offsets"
        self.is_end = name == "ending"
        self.default = default
        self.named: dict[bytes, Id | str] = {}
        self.option_of_times = f"{name}OffsetsByTimestamp"
        self.times: dict[bytes, Id] = {}
        self.time: Id | None = None
        self._read_offsets(options, self.option)
        self._read_times(options, self.option_of_times)
        self._read_time(options, f"{name}Timestamp")

    def _read_offsets(self, options: SourceOptions, name: str) -> None:
        text = options.text(name)
        if text is None:
            return
        if text.strip().lower() in (EARLIEST, LATEST):
            self.default = text.strip().lower()
            return
        try:
            self.named = named_positions(text)
        except PositionError as error:
            wanted = f"earliest, latest or offsets as JSON ({error})"
            raise options.wrong(name, wanted) from error

    def _read_time(self, options: SourceOptions, name: str) -> None:
        if name not in options:
            return
        self.time = self._at(take_time(options, name, 0))

    def _read_times(self, options: SourceOptions, name: str) -> None:
        text = options.text(name)
        if text is None:
            return
        try:
            times = named_times(text, self.is_end)
        except PositionError as error:
            raise options.wrong(name, f"times as JSON ({error})") from error
        self.times = {key: self._at(ms) for key, ms in times.items()}
        for key in self.named.keys() & self.times.keys():
            raise OptionError(
                f"options {self.option!r} and {name!r} both name the stream {key_text(key)!r}"
            )

    def _at(self, ms: int) -> Id:
        """The ID for reading from this time on, or up to it."""
        return (ms, LARGEST) if self.is_end else before((ms, 0)) or FIRST

    def find(
        self, server: ServerConnection, infos: Mapping[bytes, StreamCounters], losses: Losses
    ) -> Positions:
        """This end for each stream. A starting ID above the stream's last ID is kept: entries
        appended up to it are not read. An ending ID above the last ID becomes the last ID, so later
        appends do not change the read."""
        wanted = {key: self._wanted(key) for key in infos}
        asked = {key: [(at, ALL)] for key, at in wanted.items() if not isinstance(at, str)}
        counted = seek(server, asked)
        found: Positions = {}
        for key, info in infos.items():
            at = wanted[key]
            if isinstance(at, str):
                found[key] = info.earliest if at == EARLIEST else info.latest
            elif key in counted:
                seen = counted[key]
                if self.is_end:
                    at = min(at, seen.info.last_id)
                else:
                    self._check_evicted(key, at, seen.info, losses)
                found[key] = seen.info.position(at, seen.sought[0][0])
        return found

    def check_named(self, choice: StreamChoice) -> None:
        """OptionError when the option names a stream that is not read, which must be a mistake."""
        named = dict.fromkeys(self.times, self.option_of_times)
        for key, option in (named | dict.fromkeys(self.named, self.option)).items():
            if not choice.wants(key):
                raise OptionError(
                    f"option {option!r} names the stream {key_text(key)!r}, which is not among"
                    f" those that {choice.option!r} asks for"
                )

    def _wanted(self, key: bytes) -> Id | str:
        if key in self.named:
            return self.named[key]
        if key in self.times:
            return self.times[key]
        return self.default if self.time is None else self.time

    def _check_evicted(self, key: bytes, at: Id, info: StreamCounters, losses: Losses) -> None:
        """Report a loss if entries after an ID that the user named were evicted: such an ID was
        read before, so the entries after it should exist. 0-0 and times mean the entries that
        exist."""
        if key in self.named and FIRST < at < info.max_evicted_id:
            losses.report(
                f"entries of {key_text(key)!r} after {id_text(at)} were evicted before they were "
                "read"
            )
