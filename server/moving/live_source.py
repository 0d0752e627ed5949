"""A running Redis or Valkey as the source of an import: a full sync into a file without a name.

The file is gone when the program ends, whatever ends it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from millstream.cli_error import CliError
from millstream.server.moving.converting import Source
from millstream.server.replication.records import LinkError
from millstream.server.replication.redis_opening import (
    NO_POSITION,
    REDIS_CAPABILITIES,
    VERSION,
    RdbEnd,
    RdbPiece,
    RdbSize,
    RedisOpening,
    Refusal,
)
from millstream.storage.files.disk import write_all
from millstream.tools.tool_connection import ToolConnection, is_error, wants_password

# A source that prepares an RDB sends a newline each second.
SILENCE_S = 60.0
# Told how many bytes have arrived, and how many there are, -1 if that is not known.
Tell = Callable[[int, int], object]


class LiveSource:
    """A running server. `fetch` does a full sync."""

    def __init__(self, url: str) -> None:
        self._connection = ToolConnection(url, timeout_s=SILENCE_S)
        self.name = self._connection.name

    def fetch(self, folder: Path | None, tell: Tell) -> tuple[IO[bytes], Source]:
        """The RDB of the server, in a file without a name in this folder (None: that of temporary
        files). CliError without one."""
        try:
            file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - it is returned
            try:
                size_bytes = self._receive(file, tell)
                file.seek(0)
            except BaseException:
                file.close()
                raise
        except OSError as error:
            raise CliError(
                f"the data of {self.name} cannot be stored: {error.strerror}; nothing was written"
            ) from None
        finally:
            self._connection.close()
        return file, Source(self.name, file.fileno(), size_bytes)

    def _receive(self, file: IO[bytes], tell: Tell) -> int:
        self._introduce()
        opening = RedisOpening()
        size_bytes, total_bytes = 0, -1
        try:
            for data in self._connection.stream("PSYNC", *NO_POSITION):
                for event in opening.feed(data):
                    if isinstance(event, Refusal):
                        raise CliError(self._refused(event.text))
                    if isinstance(event, RdbSize):
                        total_bytes = event.size_bytes
                    elif isinstance(event, RdbPiece):
                        write_all(file.fileno(), event.data)
                        size_bytes += len(event.data)
                        tell(size_bytes, total_bytes)
                    elif isinstance(event, RdbEnd):
                        return size_bytes
        except LinkError as error:
            raise CliError(f"{self.name}: {error}; nothing was written") from None
        raise CliError(
            f"{self.name} ended the full sync after {size_bytes} bytes; nothing was written."
            " Its log has the reason"
        )

    def _introduce(self) -> None:
        """Say what this program understands; the source need not know all of it."""
        (ping,) = self._connection.pipeline([("PING",)])
        if wants_password(ping):  # redis-py closes the connection
            raise CliError(
                f"{self.name} needs a password: redis://user:password@host:port, or REDISCLI_AUTH"
            )
        capabilities = [word for name in REDIS_CAPABILITIES for word in (b"capa", name)]
        replies = self._connection.pipeline(
            [
                ("REPLCONF", *capabilities),
                ("REPLCONF", "version", VERSION),
                ("REPLCONF", "rdb-only", "1"),
                ("REPLCONF", "databases", "0"),  # only a millstream server knows this
            ]
        )
        if is_error(replies[0]):
            raise CliError(self._refused(str(replies[0])))
        if not is_error(replies[-1]):
            raise CliError(
                f"{self.name} is a millstream server: copy it with `millstream backup`;"
                " nothing was written"
            )

    def _refused(self, text: str) -> str:
        advice = ""
        if "unknown command" in text.lower():
            advice = "; a managed service may not have this command"
        elif text.startswith("NOPERM") or "no permissions" in text.lower():
            advice = "; its user needs +psync +replconf +ping"
        return f"{self.name} refuses a full sync: {text}{advice}; nothing was written"
