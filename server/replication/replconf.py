"""What a replica says about itself with REPLCONF, before it asks for the data with PSYNC."""

from __future__ import annotations

from millstream import __version__
from millstream.errors import CommandError
from millstream.server.config.kinds import UINT32_MAX
from millstream.server.replication import history
from millstream.server.replication.link import CAPABILITY, KNOWS_UPSTREAM


class Introduction:
    """`is_known`: the client is a millstream server that takes effects. `upstream`: the IDs of
    servers that it was told; None: it does not want any."""

    def __init__(self) -> None:
        self.port = 0
        self.address = ""
        self.is_known = False
        self.upstream: bytes | None = None
        self.version = ""
        self.databases = 0
        self.histories: tuple[tuple[str, int], ...] = ()

    @property
    def newest_line(self) -> str:
        return self.histories[-1][0] if self.histories else ""

    def take(self, name: str, value: bytes) -> None:
        """One pair of words of REPLCONF; CommandError for an invalid value."""
        text = value.decode("utf-8", "replace")
        try:
            if name == "listening-port":
                self.port = _number(text, 65535)
            elif name == "ip-address":
                self.address = text[:255]
            elif name == "capa":
                self.is_known = self.is_known or value == CAPABILITY
                if value == KNOWS_UPSTREAM and self.upstream is None:
                    self.upstream = b""
            elif name == "version":
                self.version = text[:80]
            elif name == "databases":
                self.databases = _number(text, UINT32_MAX)
            elif name == "histories":
                self.histories = history.parse(value)
            else:
                raise CommandError(f"ERR Unrecognized REPLCONF option: {name[:80]}")
        except ValueError as error:
            raise CommandError(f"ERR REPLCONF {name}: {error}") from None


def why_unsuitable(said: Introduction | None) -> str:
    """Why this client cannot be a replica."""
    if said is not None and said.version:
        return (
            f"ERR the replica has version {said.version} and does not know the effects of this"
            f" server, version {__version__}"
        )
    return (
        "ERR only a millstream server can be a replica of this server: effects are not commands of"
        " Redis"
    )


def _number(text: str, most: int) -> int:
    number = int(text) if text.isdecimal() else -1
    if not 0 <= number <= most:
        raise ValueError(f"it must be between 0 and {most}")
    return number
