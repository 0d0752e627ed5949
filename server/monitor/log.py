"""The server's log: readable lines for people, or one JSON object per line for log collectors.

It uses Python's logging with Redis' level names. Facts for searches go in `extra={"facts": {...}}`:
in JSON they are separate fields; in the readable form they are only part of the message.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from millstream.errors import StartError

LOGGER = logging.getLogger("millstream")
PROCESS_VARIABLE = "MILLSTREAM_PROCESS"  # the name of one of several processes with the same log
VERBOSE = 15
LEVELS = {
    "debug": logging.DEBUG,
    "verbose": VERBOSE,
    "notice": logging.INFO,
    "warning": logging.WARNING,
    "nothing": logging.CRITICAL + 10,
}


def _level_name(level: int) -> str:
    """Redis' name for a level of Python's logging."""
    if level >= logging.WARNING:
        return "warning"
    return next(name for name, floor in reversed(LEVELS.items()) if floor <= max(level, 10))


CONTROL = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}


def _on_one_line(message: str) -> str:
    """A message may quote a client's bytes: control characters are shown as `\\n` or `\\x1b`, and
    bytes that are no UTF-8 as `\\udcff`."""
    return message.translate(CONTROL).encode("utf-8", "backslashreplace").decode()


def _moment(record: logging.LogRecord) -> tuple[int, int]:
    """The time of a record: Unix seconds, and milliseconds. `datetime` would be loaded for nothing
    else at a start."""
    seconds, microseconds = divmod(round(record.created * 1e6), 1_000_000)
    return seconds, microseconds // 1000


class TextFormat(logging.Formatter):
    """``2025-01-31 23:59:59.123+01:00 notice  message``: local time and its offset from UTC. One
    line, except for a traceback. The name of a process is shown as ``notice  [node 0001] message``.
    """

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._prefix = f"[{process}] " if process else ""

    def format(self, record: logging.LogRecord) -> str:
        seconds, milliseconds = _moment(record)
        local = time.localtime(seconds)
        moment, offset = time.strftime("%Y-%m-%d %H:%M:%S", local), time.strftime("%z", local)
        moment += f".{milliseconds:03}{offset[:3]}:{offset[3:]}"
        message = self._prefix + _on_one_line(record.getMessage())
        text = f"{moment} {_level_name(record.levelno):<7} {message}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


class JsonFormat(logging.Formatter):
    """One object per line: time (ISO 8601, UTC), level, the name of the process if it has one,
    message, and the record's facts."""

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = {"process": process} if process else {}

    def format(self, record: logging.LogRecord) -> str:
        import json

        seconds, milliseconds = _moment(record)
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        line = {
            "time": f"{moment}.{milliseconds:03}Z",
            "level": _level_name(record.levelno),
            **self._process,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class WriteErrors(logging.Handler):
    """Reports on standard error that the log cannot be written, once for each reason. Python would
    print a traceback for each message."""

    _reported = ""

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, MemoryError):
            reason = "no memory"
        elif isinstance(error, OSError):
            reason = error.strerror or str(error)
        else:
            super().handleError(record)
            return
        if reason != self._reported:
            self._reported = reason
            with contextlib.suppress(OSError, ValueError):
                print(f"millstream: the log cannot be written: {reason}", file=sys.stderr)


class File(WriteErrors, logging.FileHandler):
    """The log in a file."""


class Output(WriteErrors, logging.StreamHandler[TextIO]):
    """The log on standard output."""


def _unusable(logfile: str, reason: str | None) -> StartError:
    return StartError(f"cannot write the log file {logfile}: {reason}")


def configure(level: str, logfile: str, log_format: str) -> None:
    """Send the log to `logfile` (empty: standard output); StartError when it cannot be opened."""
    try:
        handler = (
            File(Path(logfile), encoding="utf-8", errors="backslashreplace")
            if logfile
            else Output(sys.stdout)
        )
    except OSError as problem:
        raise _unusable(logfile, problem.strerror) from None
    for old in LOGGER.handlers[:]:
        LOGGER.removeHandler(old)
        with contextlib.suppress(OSError):  # a full disk: what was not written is lost
            old.close()
    LOGGER.addHandler(handler)
    LOGGER.propagate = False
    set_style(level, log_format)


def descriptor() -> int:
    """The descriptor of the log file; that of standard error if there is none."""
    for handler in LOGGER.handlers:
        if isinstance(handler, File) and handler.stream is not None:
            return handler.stream.fileno()
    return sys.stderr.fileno()


def check(logfile: str, directory: Path) -> None:
    """StartError if `configure` would fail. Opens and makes nothing. A start makes `directory`."""
    path = Path(logfile)
    if path.parent == directory and not directory.is_dir():
        return
    if path.is_dir():
        code = errno.EISDIR
    elif not path.parent.is_dir():
        code = errno.ENOENT
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        code = errno.EACCES
    else:
        return
    raise _unusable(logfile, os.strerror(code))


def set_style(level: str, log_format: str) -> None:
    """Change level and format of the log that is open."""
    LOGGER.setLevel(LEVELS[level])
    process = os.environ.get(PROCESS_VARIABLE, "")
    for handler in LOGGER.handlers:
        handler.setFormatter(JsonFormat(process) if log_format == "json" else TextFormat(process))


def progress_line() -> Callable[[int, int], None] | None:
    """Shows (bytes done, bytes in all) of loading on a terminal; None where there is none."""
    terminal = sys.stderr
    if not terminal.isatty():
        return None

    def show(done: int, total: int) -> None:
        end = "\r\033[K" if done >= total else ""  # erase the finished line
        share = 100 * done // total if total else 100
        terminal.write(f"\rloading {share} % of {total / 1024**2:.0f} MB{end}")
        terminal.flush()

    return show
