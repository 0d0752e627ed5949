"""The directives in force: CONFIG SET, CONFIG REWRITE, and the parts that copy a value."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.errors import CommandError, StartError
from millstream.server.config.config_rewrite import rewrite_file
from millstream.server.config.directives import changed_values, refused
from millstream.server.config.doubts import doubts
from millstream.server.config.kinds import UINT32_MAX
from millstream.server.monitor import log
from millstream.server.monitor.log import LOGGER
from millstream.server.net.tls import make_link_context
from millstream.server.open_files import allowed_clients

if TYPE_CHECKING:
    from millstream.server.app import Server

LONGEST_US = 2**53  # thresholds above are never reached
LONGEST_MS = 2**43


class Settings:
    """Changes directives while the server runs. `file` is the configuration file, if any."""

    def __init__(self, server: Server, file: Path | None) -> None:
        self._server = server
        self._config = server.config
        self._file = file

    def set(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """CONFIG SET: all of these directives or none. CommandError when one is refused."""
        values = changed_values(self._config, pairs)
        most = allowed_clients(values.get("maxclients", 0))
        if most < values.get("maxclients", 0):
            raise refused(
                "maxclients",
                "The operating system is not able to handle the specified number of clients, "
                f"try with {most}",
            )
        before = {attribute: getattr(self._config, attribute) for attribute in values}
        tls = self._server.listeners.wanted_tls
        try:
            self._assign(values)
            if any(attribute.startswith("tls_") for attribute in values):
                make_link_context(self._config)
                self._server.listeners.renew()
            self.put_in_force()
        except (OSError, CommandError, StartError) as problem:
            self._assign(before)
            # The files of the earlier certificate may have changed: they are not read again.
            self._server.listeners.use(tls)
            self.put_in_force()
            raise CommandError(f"ERR CONFIG SET failed - {problem}") from None

    def _assign(self, values: dict[str, Any]) -> None:
        for attribute, value in values.items():
            setattr(self._config, attribute, value)
        if "requirepass" in values:
            self._server.access.set_default_password(self._config.requirepass)

    def put_in_force(self) -> None:
        """Update the objects that have a copy of a directive; the others read the config each
        time."""
        config, keyspace = self._config, self._server.keyspace
        keyspace.node_bytes = min(config.stream_node_max_bytes, UINT32_MAX) or UINT32_MAX
        keyspace.node_entries = min(config.stream_node_max_entries, UINT32_MAX) or UINT32_MAX
        keyspace.idmp_duration_s = config.stream_idmp_duration
        keyspace.idmp_maxsize = config.stream_idmp_maxsize
        keyspace.producers_max = config.stream_producers_max
        keyspace.held_max_bytes = config.stream_held_max_bytes
        keyspace.reservations_max = config.stream_reservations_max
        keyspace.writers_max = config.stream_writers_max
        self._server.executor.limits.bulk_bytes = config.proto_max_bulk_len
        self._server.executor.limits.query_bytes = config.client_query_buffer_limit
        self._server.executor.limit_queue(config.journal_queue_limit)
        self._server.access.users.all_channels = config.acl_pubsub_default == "allchannels"
        self._server.access.log.max_len = config.acllog_max_len
        self._server.access.log.trim()
        self._limit_memory()
        self._server.replication.restrictions.update()
        self._server.persistence.set_fsync(config.appendfsync)
        if self._server.executor.context.may_block:
            self.set_appendonly()
        else:  # after EXEC, so that the journal has all of its effects or none
            self._server.loop.call_soon(self.set_appendonly)
        self._set_events(config.notify_keyspace_events)
        self._set_output_limits()
        self._set_watching()
        log.set_style(config.loglevel, config.log_format)

    def _limit_memory(self) -> None:
        limit_bytes, evicts = self._config.maxmemory, self._config.maxmemory_policy != "noeviction"
        eviction = self._server.eviction
        if (eviction.limit_bytes, eviction.evicts) != (limit_bytes, evicts):
            eviction.limit_bytes, eviction.evicts = limit_bytes, evicts
            self._server.loop.call_soon(self._server.executor.eviction_work.limit_memory, eviction)

    def set_appendonly(self) -> None:
        """Switch the journal on or off."""
        wanted = self._config.appendonly
        self._server.executor.effects.enabled = wanted
        self._server.persistence.set_appendonly(wanted)
        self._server.replication.journal_switched()
        if not wanted:
            self._server.check_waits()

    def _set_events(self, letters: str) -> None:
        """notify-keyspace-events: without K or E there is no channel, so nothing is recorded."""
        self._server.pubsub.tells_keyspace = "K" in letters
        self._server.pubsub.tells_keyevent = "E" in letters
        told = "K" in letters or "E" in letters
        self._server.executor.context.events = letters.encode() if told else b""

    def _set_output_limits(self) -> None:
        outbox, least_bytes = self._server.executor.outbox, self._server.output_limits.least_bytes
        if outbox.least_limit_bytes != least_bytes:
            outbox.least_limit_bytes = least_bytes
            outbox.lagging.update(self._server.clients.values())  # one may exceed the new limit

    def _set_watching(self) -> None:
        config = self._config
        self._server.slowlog.threshold_us = config.slowlog_log_slower_than
        self._server.slowlog.max_len = config.slowlog_max_len
        self._server.slowlog.trim()
        self._server.latency.threshold_ms = config.latency_monitor_threshold
        self._server.executor.set_slow(
            min(config.slowlog_log_slower_than, LONGEST_US),
            min(config.latency_monitor_threshold, LONGEST_MS),
        )

    def doubts(self) -> list[str]:
        """Warnings about the configuration."""
        return doubts(self._config, self._file)

    def rewrite(self) -> None:
        """CONFIG REWRITE."""
        if self._file is None:
            raise CommandError("ERR The server is running without a config file")
        try:
            rewrite_file(self._file, self._config, self._server.user_store.lines())
        except (OSError, ValueError) as problem:
            words = getattr(problem, "strerror", None) or problem
            LOGGER.error(
                "the configuration file %s cannot be replaced: %s. A restart uses it as it is",
                self._file, words,
            )  # fmt: skip
            raise CommandError(f"ERR Rewriting config file: {words}") from None
        LOGGER.info("the configuration is written to %s", self._file)
