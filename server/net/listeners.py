"""The listening sockets (TCP, TLS, Unix), bound before the data is loaded; renewal of certificates.

Servers without TLS do not load the modules about it. A new TLS context gets a new listener on a
copy of the same socket, and the old listener is closed: connections that were accepted continue,
and none is refused in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from millstream.errors import StartError
from millstream.server.config.directives import Config
from millstream.server.monitor.log import LOGGER
from millstream.server.net.sockets import (
    bind_sockets,
    bind_unix,
    check_ports,
    name_of_socket,
    start_listening,
)

if TYPE_CHECKING:
    from millstream.server.net.tls_contexts import Tls

NewConnection = Callable[[], Any]
AGAIN_S = 0.2  # between two attempts to take the addresses again


class Further(Protocol):
    """Another listener."""

    async def listen(self) -> None: ...
    def close(self) -> None: ...


class Listeners:
    """The ports of a server. `port` and `tls_port` are 0 where there is no such port; `tls` is
    in use, and `wanted_tls` will be."""

    def __init__(
        self,
        config: Config,
        new_connection: NewConnection,
        *,
        is_shared: bool = False,
        for_gateways: Further | None = None,
    ) -> None:
        """`is_shared`: other processes may listen on the same ports, if theirs are shared, too.
        `for_gateways` opens and closes with the ports."""
        self.port = config.port
        self.tls_port = config.tls.port
        self.tls: Tls | None = None
        self.wanted_tls: Tls | None = None
        self.files_expire_s: dict[str, int] = {}  # by directive; see `expiry_dates`
        self._config = config
        self._is_shared = is_shared
        self._for_gateways = for_gateways
        self._loop = asyncio.get_running_loop()
        # It has all methods of a protocol, but a compiled class has no Python base class.
        self._new_connection = cast(Callable[[], asyncio.BaseProtocol], new_connection)
        self._sockets: list[socket.socket] = []
        self._tls_sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._tls_servers: list[asyncio.Server] = []
        self._renewal: asyncio.Task[None] | None = None
        self._is_bound = self._is_closed = self._is_told = False

    def bind(self) -> None:
        """Take the ports, and check the certificate. StartError with one sentence."""
        config = self._config
        self._is_bound = True
        check_ports(config)
        if config.tls.port or config.tls.replication:
            from millstream.server.net.certificate_dates import expiry_dates
            from millstream.server.net.tls_contexts import make_tls

            if config.tls.port:
                self.tls = self.wanted_tls = make_tls(config)
            self.files_expire_s = expiry_dates(config)
        if config.port or not (config.tls.port or config.unix.socket):
            self._sockets = bind_sockets(config.bind, config.port, is_shared=self._is_shared)
            self.port = config.port = self._sockets[0].getsockname()[1]
        if config.tls.port:
            self._tls_sockets = bind_sockets(
                config.bind, config.tls.port, "tls-port", is_shared=self._is_shared
            )
        if config.unix.socket:
            self._sockets.append(bind_unix(self._unix_path(), config.unix.socketperm))

    async def listen(self) -> None:
        """Accept connections from now on."""
        for bound in self._sockets:
            self._servers.append(await self._serve(bound, None))
        if self._for_gateways is not None:
            await self._for_gateways.listen()
        if self.tls is not None:
            self._tls_servers = await self._serve_tls(self.tls)
            self.tls.log()
        self._warn_of_expired()

    async def _serve(self, bound: socket.socket, tls: Tls | None) -> asyncio.Server:
        options: dict[str, Any] = {"sock": bound, "backlog": self._config.tcp_backlog}
        new_connection: Callable[[], Any] = self._new_connection
        if tls is not None:
            from millstream.server.net.tls_contexts import HANDSHAKE_S
            from millstream.server.net.tls_handshake import Handshake

            if self._counts_timeouts(tls):
                new_connection = partial(Handshake, tls.context, new_connection, HANDSHAKE_S)
            else:
                options |= {"ssl": tls.context, "ssl_handshake_timeout": HANDSHAKE_S}
        begin: Callable[..., Any] = self._loop.create_server
        directive = "port" if tls is None else "tls-port"
        if bound.family == socket.AF_UNIX:
            begin = self._loop.create_unix_server
            directive = "unixsocket"
        start_listening(bound, self._config.tcp_backlog, directive)
        server: asyncio.Server = await begin(new_connection, **options)
        return server

    def _counts_timeouts(self, tls: Tls) -> bool:
        """True if handshakes that take too long can be counted; if not, the log says so once."""
        from millstream.server.net.tls_contexts import HANDSHAKE_S
        from millstream.server.net.tls_handshake import has_protocol

        if has_protocol(tls.context, HANDSHAKE_S):
            return True
        if not self._is_told:
            LOGGER.warning(
                "tls      handshakes that take too long are ended, but not counted: uvloop has no"
                " SSLProtocol, or with other arguments"
            )
            self._is_told = True
        return False

    async def _serve_tls(self, tls: Tls) -> list[asyncio.Server]:
        """Serve all sockets with this context, or none."""
        servers: list[asyncio.Server] = []
        try:
            for bound in self._tls_sockets:
                servers.append(await self._serve(bound.dup(), tls))
        except (StartError, OSError):
            _close(servers)
            raise
        return servers

    def renew(self) -> bool:
        """Use the certificates that the directives name now, for new connections; False without
        TLS. StartError when they cannot be used; then nothing changes."""
        from millstream.server.net.certificate_dates import expiry_dates
        from millstream.server.net.tls_contexts import make_link_context, make_tls

        config = self._config
        is_for_link = make_link_context(config) is not None
        tls = make_tls(config) if self.tls_port else None
        self.files_expire_s = expiry_dates(config)
        self._warn_of_expired()
        self.use(tls)
        return is_for_link or tls is not None

    def renew_all(self) -> None:
        """CONFIG SET of a directive of TLS. Before `bind`, there is nothing to do."""
        if self._is_bound:
            self.renew()

    def _warn_of_expired(self) -> None:
        if not self.files_expire_s:
            return
        from millstream.server.net.certificate_dates import expiry_warnings

        for warning in expiry_warnings(self.files_expire_s):
            LOGGER.warning("tls      %s", warning)

    def use(self, tls: Tls | None) -> None:
        """Use this context for new connections, if it is another one."""
        if tls is None or tls is self.wanted_tls:
            return
        self.wanted_tls = tls
        self._renewal = self._loop.create_task(self._replace(tls, self._renewal))

    async def _replace(self, tls: Tls, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        try:
            replaced, self._tls_servers = self._tls_servers, await self._serve_tls(tls)
        except (StartError, OSError) as problem:
            LOGGER.error("the new certificate is not used: %s", problem)
            if self.wanted_tls is tls:
                self.wanted_tls = self.tls
            return
        self.tls = tls
        _close(replaced)
        if self._is_closed:
            _close(self._tls_servers)
            return
        tls.log()

    def close(self) -> None:
        """Accept no more connections. A Unix socket is removed; a second call does nothing, because
        another server may have its path by then."""
        if self._is_closed:
            return
        self._is_closed = True
        _close([*self._servers, *self._tls_servers])
        if self._for_gateways is not None:
            self._for_gateways.close()
        for bound in self._tls_sockets:
            bound.close()
        if self._config.unix.socket and self._servers:
            with contextlib.suppress(OSError):
                self._unix_path().unlink()

    async def reopen(self) -> None:
        """Accept connections again after `close`, as soon as the addresses are free."""
        is_logged = False
        while True:
            self._is_closed = False
            self._sockets, self._tls_sockets = [], []
            self._servers, self._tls_servers = [], []
            try:
                self.bind()
                await self.listen()
            except (StartError, OSError) as problem:
                if not is_logged:
                    LOGGER.error("cannot accept connections yet: %s", problem)
                is_logged = True
                self.close()
                for bound in self._sockets:
                    bound.close()
                await asyncio.sleep(AGAIN_S)
            else:
                return

    def _unix_path(self) -> Path:
        return Path(self._config.located(self._config.unix.socket))

    def described(self) -> str:
        """The addresses at which the server listens, for the log. `bind` may also name some that
        this machine does not have."""
        found = [name_of_socket(bound) for bound in self._sockets]
        found += [f"{name_of_socket(bound)} (TLS)" for bound in self._tls_sockets]
        return ", ".join(found)

    def info(self) -> str:
        """The listeners as INFO shows them."""
        config = self._config
        return _shown(tuple(config.bind), self.port, config.unix.socket, self.tls_port)


@lru_cache(maxsize=4)
def _shown(addresses: tuple[str, ...], port: int, path: str, tls_port: int) -> str:
    found = []
    if port:
        found = [f"name=tcp,bind={address},port={port}" for address in addresses]
    if path:
        found.append(f"name=unix,bind={path}")
    if tls_port:
        found += [f"name=tls,bind={address},port={tls_port}" for address in addresses]
    return "".join(f"listener{number}:{text}\r\n" for number, text in enumerate(found))


def _close(servers: Sequence[asyncio.Server]) -> None:
    for server in servers:
        server.close()
