"""The process of one source: it prepares, reads and copies until it is stopped.

`millstream cdc run` starts it as `python -m` with this module's name, and FILE and SOURCE. Standard
output has the report as a line of JSON every second. The end of standard input means that `run` has
ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import psycopg

from millstream.backoff import Backoff
from millstream.cdc.checks import all_checks
from millstream.cdc.checks.findings import without_source
from millstream.cdc.config import CdcConfig, ConfigError, Source
from millstream.cdc.config_file import load
from millstream.cdc.logs import Secrets, open_log
from millstream.cdc.protocol.pgoutput import DecodeError
from millstream.cdc.protocol.replication_stream import ReplicationStream, cancel_commands
from millstream.cdc.reader.outgoing import Outgoing
from millstream.cdc.reader.report import ReaderState, SourceReport
from millstream.cdc.reader.snapshot import TableSnapshots
from millstream.cdc.reader.streaming import Streaming, StuckError, first_of
from millstream.cdc.reader.watching import Publisher, StreamBacklog, Watcher
from millstream.cdc.source.changed_tables import without_publication
from millstream.cdc.source.preparing import Preparation, SourceRefusal
from millstream.cdc.sql import lsn_text
from millstream.cdc.streams.source_record import SourceRecord
from millstream.cdc.streams.source_state import SourceState, StateError, has_slot
from millstream.cdc.streams.stream_appender import (
    RefusedError,
    SourceReplacedError,
    States,
    StreamAppender,
    open_server,
)
from millstream.cdc.streams.translator import Described, ProtocolError, Translator
from millstream.pipeline.server_connection import ServerError

REFUSED_S = 5.0
LOOK_S = 0.2
STEADY_S = 10.0
"""After a session that lasted this long, the next one begins after the shortest pause."""

ACTIVE = re.compile(r'replication slot "(.*)" is active for PID (\d+)')


class SourceProcess:
    """Reads one source."""

    def __init__(self, config: CdcConfig, source: Source, send: Callable[[str], None]) -> None:
        self._config = config
        self._source = source
        self._secrets = Secrets(config)
        self._log = open_log(source.name, self._secrets)
        self._report = SourceReport.of(source, self._problem)
        self._record = SourceRecord(config, source, open_server(config.millstream))
        self._stop = threading.Event()
        self._failed: BaseException | None = None
        self._backlog = StreamBacklog(config.millstream.backlog_mb)
        self._publisher = Publisher(self._record, self._report, self._backlog, send, self._stop)
        self._watcher = Watcher(self._record, self._report, self._stop, self._warn)
        self._copier: TableSnapshots | None = None
        self._is_prepared = False
        self._was_prepared = False
        self._warned: list[str] = []

    async def run(self) -> None:
        """Until it is cancelled, or one of the threads fails."""
        self._start(self._publisher.run)
        self._start(self._watcher.run)
        backoff = Backoff()
        while True:
            started = time.monotonic()
            reader, problem = await self._session()
            self._report.became(reader, problem)
            if time.monotonic() - started > STEADY_S:
                backoff.reset()
            pause_s = backoff.next_s()
            await self._pause(REFUSED_S if reader == "refused" else pause_s)

    def close(self) -> None:
        """End the threads and remove the report. Nothing of this process is waited for."""
        self._stop.set()
        cancel_commands()
        with contextlib.suppress(ServerError):
            self._record.server.call("DEL", self._record.keys.alive)

    # ------------------------------------------------------------ sessions

    async def _session(self) -> tuple[ReaderState, str | None]:
        """Prepare and read until an error ends that; returns the reader's state then, and the
        reason."""
        try:
            if self._is_prepared:
                await self._wait_for_space()
            state = await asyncio.to_thread(self._prepare)
            await self._read(state)
        except (SourceRefusal, StateError) as error:
            self._is_prepared = False
            return "refused", self._secrets.hide(error)
        except SourceReplacedError as error:
            self._is_prepared = False
            self._log.info("%s", error)
            return "starting", None
        except StuckError:
            return self._report.reader, self._report.problem
        except psycopg.errors.ObjectInUse as error:
            found = ACTIVE.search(str(error))
            text = f"slot {found[1]} is active for PID {found[2]}" if found else str(error)
            return "waiting", self._secrets.hide(text)
        except psycopg.errors.UndefinedObject as error:
            if f'publication "{self._source.slot}"' not in str(error):
                return "waiting", self._secrets.hide(error)
            self._is_prepared = False
            return "refused", without_publication(self._source)
        except (psycopg.Error, OSError, ServerError, RefusedError) as error:
            return "waiting", self._secrets.hide(error)
        except (DecodeError, ProtocolError) as error:
            return "waiting", f"the replication stream cannot be decoded: {error}"
        return "waiting", None

    async def _wait_for_space(self) -> None:
        """Wait while the streams hold too much data, without a connection: for each new connection
        the source would decode its WAL again."""
        while (problem := self._backlog.problem()) is not None:
            if self._publisher.resync.is_set():
                return
            self._report.became("paused", problem)
            self._raise_failure()
            await asyncio.sleep(LOOK_S)

    def _prepare(self) -> SourceState:
        state = self._prepared()
        # A write, to detect a server without memory before the source is read.
        states = States(self._record.server)
        states.expect(self._record.keys.state, state.to_json())
        states.swap(self._record.keys.state, state.to_json())
        return state

    def _prepared(self) -> SourceState:
        """The state from which the source is read. If it was read before, only cheap checks are
        made."""
        preparation = Preparation(self._record, self._waiting, self._say)
        if self._is_prepared:
            state, _ = preparation.compare()
            if state is not None and has_slot(state):
                return state
        self._check()
        state = preparation.run(self._was_prepared)
        self._is_prepared = self._was_prepared = True
        self._publisher.resync.clear()
        return state

    def _check(self) -> None:
        """Check the configuration against the source; Refusal if reading cannot work."""
        findings = all_checks.before_reading(self._record)
        warnings = [finding.text for finding in findings if finding.level == "warning"]
        for text in warnings:
            if text not in self._warned:  # by the check before this one
                self._log.warning("%s", without_source(text, self._source.name))
        self._warned = warnings
        errors = [
            without_source(finding.text, self._source.name)
            for finding in findings
            if finding.level == "error"
        ]
        if errors:
            raise SourceRefusal(errors)

    def _waiting(self, problem: str) -> None:
        self._report.became("waiting", problem)

    def _problem(self, reader: ReaderState, problem: str) -> None:
        self._log.log(logging.ERROR if reader == "refused" else logging.WARNING, "%s", problem)

    def _warn(self, line: str) -> None:
        self._log.error("%s", line)

    def _say(self, line: str) -> None:
        self._log.info("%s", line)

    async def _read(self, state: SourceState) -> None:
        tables_by_oid = await asyncio.to_thread(self._record.tables_by_oid)
        replication = await asyncio.to_thread(self._connect, state)
        appender = StreamAppender(
            self._record.server, self._record.keys.cuts, self._record.keys.state
        )
        appender.states.expect(self._record.keys.state, state.to_json())
        outgoing = Outgoing(
            appender,
            self._record.keys,
            state,
            self._report,
            lambda lsn: reading.durable(lsn),
            self._backlog.add,
        )
        reading = Streaming(
            replication,
            Translator(self._source.tables, tables_by_oid),
            outgoing,
            self._backlog.problem,
            self._report,
            self._described,
        )
        self._report.durable_lsn = state.durable_lsn
        self._report.became("reading")
        self._log.info("reading from %s", lsn_text(state.durable_lsn))
        if self._copier is None:
            self._copier = TableSnapshots(self._record, self._report, self._stop, self._say)
            self._start(self._copier.run)
        try:
            await first_of(reading.run(), self._interrupted())
        finally:
            replication.close()
            await outgoing.settled()

    def _connect(self, state: SourceState) -> ReplicationStream:
        replication = ReplicationStream(self._source.url, f"millstream cdc: {self._source.name}")
        try:
            replication.start(self._source.slot, self._source.slot, state.durable_lsn)
        except BaseException:
            replication.close()
            raise
        return replication

    def _described(self, described: Described) -> None:
        relation = described.relation
        self._log.info(
            "%s has the columns %s",
            described.table.full_name,
            ", ".join(column.name for column in relation.columns),
        )
        self._watcher.look_now()

    async def _interrupted(self) -> None:
        """SourceReplacedError when everything is to be copied again."""
        while not self._publisher.resync.is_set():
            self._raise_failure()
            await asyncio.sleep(LOOK_S)
        raise SourceReplacedError("everything is copied again, as requested")

    async def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._raise_failure()
            if self._publisher.resync.is_set() and self._report.reader == "refused":
                return
            await asyncio.sleep(LOOK_S)

    # ------------------------------------------------------------ threads

    def _start(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                self._failed = error

        threading.Thread(target=guarded, daemon=True).start()

    def _raise_failure(self) -> None:
        if self._failed is not None:
            raise RuntimeError("a thread of the reader failed") from self._failed


def _send(line: str) -> None:
    with contextlib.suppress(BrokenPipeError, ValueError):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


async def _run(process: SourceProcess) -> int:
    task = asyncio.ensure_future(process.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        await task
    except asyncio.CancelledError:
        return 0
    finally:
        process.close()
    return 1


async def _run_and_end(process: SourceProcess, name: str) -> NoReturn:
    """Run, and end this process here: `asyncio.run` would wait for threads, which may wait for a
    source or a server. Nothing of them is needed."""
    code = 1
    try:
        code = await _run(process)
    except Exception:
        logging.getLogger(f"millstream.cdc.{name}").exception("the reader failed")
    sys.stderr.flush()
    os._exit(code)


def main(arguments: list[str]) -> None:
    """The process of the source that the second argument names."""
    try:
        config = load(Path(arguments[0]))
        source = config.source(arguments[1])
    except ConfigError as error:  # the file was changed since `run` read it
        sys.exit(f"millstream: {error}")
    asyncio.run(_run_and_end(SourceProcess(config, source, _send), source.name))


if __name__ == "__main__":
    main(sys.argv[1:])
