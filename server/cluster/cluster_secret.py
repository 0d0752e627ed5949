"""The secret with which the nodes of a cluster on many machines log in at each other."""

from __future__ import annotations

from millstream.server.config.directives import Config
from millstream.server.config.secret_file import read_secret


class ClusterSecret:
    """The secret in cluster-secret-file, or else that in the store. StartError if the file cannot
    be used."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._stored = b""
        self._given = self._read()

    def _read(self) -> bytes:
        return read_secret(self._config) if self._config.cluster.secret_file else b""

    @property
    def is_given(self) -> bool:
        """True if it is that in the file."""
        return bool(self._given)

    def current(self) -> bytes:
        """b"" while it is not known."""
        return self._given or self._stored

    def take_stored(self, secret: bytes) -> None:
        """The secret in the store; b"": there is none."""
        self._stored = secret

    def renew(self) -> bool:
        """Read the file again; true if the secret has changed. After a StartError, it is the
        earlier one."""
        before, self._given = self._given, self._read()
        return self._given != before
