"""PUBLISH for the subscribers of all nodes of one machine (of many: `member_relay`).

Each node listens on a Unix socket in its data directory, which only its user can reach. A node that
has a message connects to the others when it needs them. Messages are not stored: those for a node
that does not run, or that is slow, are dropped and counted.

A message may show what is not on the disk yet, so it is sent when the replies of its tick are: it
goes through the outbox, to a client that stands for the other nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from millstream.server.cluster.unix_sockets import connected_socket, listening_socket
from millstream.server.protocol.outbox import Client

NAME = "peer.sock"
WAITING_MAX_BYTES = 1 << 20  # for one node
RECEIVED_BYTES = 1 << 16
_SIZES = struct.Struct("<II")  # of the channel and of the message

Deliver = Callable[[bytes, bytes], object]


class Sender(Protocol):
    """Passes messages through the outbox: the executor."""

    def attach(self, client: Client) -> None: ...
    def push_encoded(self, client: Client, data: bytes) -> None: ...


class Peer:
    """The connection to another node, whose data directory is `folder`."""

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.dropped = 0
        self._folder = folder
        self._loop = loop
        self._socket: socket.socket | None = None
        self._waiting = bytearray()
        self._sizes: deque[int] = deque()  # of the frames that wait
        self._begun_bytes = 0  # of the first of them: they are sent

    def send(self, frame: bytes) -> None:
        """Send a frame as a whole, or drop it."""
        if not self._is_connected() or len(self._waiting) + len(frame) > WAITING_MAX_BYTES:
            self.dropped += 1
            return
        self._waiting += frame
        self._sizes.append(len(frame))
        self._flush()

    def _is_connected(self) -> bool:
        if self._socket is None:
            with contextlib.suppress(OSError):
                self._socket = connected_socket(self._folder, NAME)
        return self._socket is not None

    def _flush(self) -> None:
        if self._socket is None:
            return
        number = self._socket.fileno()
        try:
            self._note_sent(self._socket.send(self._waiting))
        except BlockingIOError:
            pass
        except OSError:  # the node has ended
            self.close()
            return
        if self._waiting:
            self._loop.add_writer(number, self._flush)
        else:
            self._loop.remove_writer(number)

    def _note_sent(self, size_bytes: int) -> None:
        del self._waiting[:size_bytes]
        self._begun_bytes += size_bytes
        while self._sizes and self._sizes[0] <= self._begun_bytes:
            self._begun_bytes -= self._sizes.popleft()

    def close(self) -> None:
        """End the connection. The frames that wait are dropped."""
        if self._socket is not None:
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self.dropped += len(self._sizes)
        self._sizes.clear()
        self._waiting.clear()
        self._begun_bytes = 0


class Way(Protocol):
    """The connection to another node. `dropped` is the number of messages that were not sent."""

    dropped: int

    def send(self, frame: bytes) -> None:
        """Send a message as a whole, or drop it."""


class Outgoing(Client):
    """Messages for other nodes, as a client of the outbox, which passes them to `ways`. `lost` is
    the number of those that did not leave it."""

    def __init__(self, sender: Sender, ways: Sequence[Way] = ()) -> None:
        super().__init__(0)
        self.ways = ways
        self.lost = 0
        self._sender = sender
        self._waiting_bytes = 0
        sender.attach(self)

    def add(self, frame: bytes) -> None:
        """Send a message as soon as it may be seen."""
        if not self.ways:
            return
        if self._waiting_bytes + len(frame) > WAITING_MAX_BYTES:
            self.lost += len(self.ways)
            return
        self._waiting_bytes += len(frame)
        self._sender.push_encoded(self, frame)

    def transmit(self, data: bytes) -> int:
        self._waiting_bytes -= len(data)
        for way in self.ways:
            way.send(data)
        return 0

    def transmit_all(self, pieces: list[bytes], size: int) -> int:
        for piece in pieces:
            self.transmit(piece)
        return 0

    def end(self, after_reply: bool) -> int:
        """The journal has failed: what waits for it is lost."""
        if self._waiting_bytes:
            self._waiting_bytes = 0
            self.lost += len(self.ways)
        return 0


class Relay:
    """Sends messages to the nodes with these data directories, and delivers those that they send to
    the one in `folder`."""

    def __init__(
        self,
        folder: Path,
        others: Iterable[Path],
        deliver: Deliver,
        loop: asyncio.AbstractEventLoop,
        sender: Sender,
    ) -> None:
        self._path = folder / NAME
        self._peers = [Peer(other, loop) for other in others]
        self._outgoing = Outgoing(sender, self._peers)
        self._deliver = deliver
        self._loop = loop
        self._open: set[socket.socket] = set()
        self._listening = listening_socket(folder, NAME)
        self._listening.setblocking(False)
        loop.add_reader(self._listening.fileno(), self._accept)

    @property
    def dropped(self) -> int:
        """The number of messages that were not sent to a node."""
        return self._outgoing.lost + sum(peer.dropped for peer in self._peers)

    def publish(self, channel: bytes, message: bytes) -> None:
        """Send a message to the other nodes as soon as it may be seen."""
        self._outgoing.add(_SIZES.pack(len(channel), len(message)) + channel + message)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listening.accept()
        except OSError:  # it has ended already, or there are too many open files
            return
        accepted.setblocking(False)
        self._open.add(accepted)
        receive = partial(self._receive, accepted, bytearray())
        self._loop.add_reader(accepted.fileno(), receive)

    def _receive(self, accepted: socket.socket, received: bytearray) -> None:
        try:
            data = accepted.recv(RECEIVED_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(accepted)
            return
        received += data
        at = 0
        while len(received) - at >= _SIZES.size:
            channel_size, message_size = _SIZES.unpack_from(received, at)
            begin = at + _SIZES.size
            end = begin + channel_size + message_size
            if len(received) < end:
                break
            channel = bytes(received[begin : begin + channel_size])
            self._deliver(channel, bytes(received[begin + channel_size : end]))
            at = end
        del received[:at]

    def _close(self, accepted: socket.socket) -> None:
        self._loop.remove_reader(accepted.fileno())
        accepted.close()
        self._open.discard(accepted)

    def close(self) -> None:
        self._loop.remove_reader(self._listening.fileno())
        self._listening.close()
        self._path.unlink(missing_ok=True)
        for accepted in list(self._open):
            self._close(accepted)
        for peer in self._peers:
            peer.close()
