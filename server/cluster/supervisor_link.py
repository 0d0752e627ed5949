"""A node's end of the connection with the supervisor of its machine, and that of the gateway.

The supervisor gives each of them one end of a socket pair, whose number is in the environment. Both
ends send JSON objects, one on a line. A node sends its state, and each change of its users. The
supervisor sends the states of all nodes, and when the file of the users has changed. When the
connection ends, the supervisor has ended, and the node stops.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable
from typing import Any, Protocol

from millstream.errors import CommandError, StartError
from millstream.server.cluster.states import LOADING, ONLINE, NodeState
from millstream.server.config.cluster_directives import SUPERVISOR_VARIABLE
from millstream.server.monitor.log import LOGGER

BETWEEN_S = 1.0
RECEIVED_BYTES = 65536


class Stop(Protocol):
    def stop_by_signal(self, name: str) -> None:
        """Stops as SHUTDOWN does."""


class UserTable(Protocol):
    when_changed: Callable[[bytes, bytes | None], object]


class UserFile(Protocol):
    when_loaded: Callable[[], object]

    def read_again(self, *, keeps_clients: bool) -> None:
        """Reads the aclfile. CommandError if it has errors."""


class Supervised(Protocol):
    @property
    def last_frame(self) -> Callable[[], int]: ...
    def note_states(self, states: dict[int, NodeState]) -> None: ...


class Node(Protocol):
    """The server at this end."""

    @property
    def access(self) -> UserTable: ...
    @property
    def user_store(self) -> UserFile: ...
    @property
    def cluster(self) -> Supervised | None: ...
    @property
    def shutdown(self) -> Stop: ...
    @property
    def stopping(self) -> asyncio.Event: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...


class StateLink:
    """Sends the state of this process from its start on, once a second, and receives those of all
    nodes. `stop` is called when the supervisor has ended."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        end: socket.socket,
        last_frame: Callable[[], int],
        note_states: Callable[[dict[int, NodeState]], object],
        stop: Callable[[], object],
    ) -> None:
        self._loop = loop
        self._end = end
        self._last_frame = last_frame
        self._note_states = note_states
        self._stop = stop
        self._received = b""
        self._unsent = b""
        self._is_ready = False
        self._timer: asyncio.TimerHandle | None = None
        end.setblocking(False)
        loop.add_reader(end.fileno(), self._receive)
        self._send_state()

    @classmethod
    def of_environment(
        cls,
        loop: asyncio.AbstractEventLoop,
        last_frame: Callable[[], int],
        note_states: Callable[[dict[int, NodeState]], object],
        stop: Callable[[], object],
    ) -> StateLink:
        """The link over the descriptor that the environment names."""
        return cls(loop, end_of_environment(), last_frame, note_states, stop)

    def begin_serving(self) -> None:
        """This process serves clients now: a node has loaded its data."""
        self._is_ready = True
        self._send_state()

    # Sending

    def _send_state(self) -> None:
        """Send the state now, and again in a second."""
        if self._timer is not None:
            self._timer.cancel()
        if self._end.fileno() < 0:
            return
        if not self._unsent:  # otherwise the supervisor is slow
            health = ONLINE if self._is_ready else LOADING
            self._send({"health": health, "frame": self._last_frame()})
        self._timer = self._loop.call_later(BETWEEN_S, self._send_state)

    def _send(self, message: dict[str, Any]) -> None:
        if self._end.fileno() >= 0:
            self._unsent += json.dumps(message).encode() + b"\n"
            self._flush()

    def _flush(self) -> None:
        number = self._end.fileno()
        try:
            self._unsent = self._unsent[self._end.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:  # the supervisor has ended, as `_receive` will notice
            self._unsent = b""
        if self._unsent:
            self._loop.add_writer(number, self._flush)
        else:
            self._loop.remove_writer(number)

    # Receiving

    def _receive(self) -> None:
        try:
            data = self._end.recv(RECEIVED_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end_of_supervisor()
            return
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, message: dict[str, Any]) -> None:
        if "nodes" in message:
            self._note_states(
                {int(number): NodeState(*state) for number, state in message["nodes"].items()}
            )

    def _end_of_supervisor(self) -> None:
        self._loop.remove_reader(self._end.fileno())
        self._loop.remove_writer(self._end.fileno())
        self._end.close()
        self._stop()


def end_of_environment() -> socket.socket:
    """The descriptor that the environment names. Programs that this process starts do not get
    it."""
    end = socket.socket(fileno=int(os.environ.pop(SUPERVISOR_VARIABLE)))
    end.set_inheritable(False)
    return end


class SupervisorLink(StateLink):
    """The link of a node, which also sends the changes of its users."""

    def __init__(self, server: Node, end: socket.socket) -> None:
        node = server.cluster
        if node is None:
            raise StartError("only a node of a cluster has a supervisor: cluster-enabled is no")
        self._server = server
        self._changes = 0  # of users
        self._is_loading_users = False  # another node had ACL LOAD
        server.access.when_changed = self._user_changed
        server.user_store.when_loaded = self._users_loaded
        super().__init__(server.loop, end, node.last_frame, node.note_states, self._stop_server)

    @classmethod
    def of_server(cls, server: Node) -> SupervisorLink:
        return cls(server, end_of_environment())

    def _stop_server(self) -> None:
        if not self._server.stopping.is_set():
            LOGGER.warning("the supervisor of this node has ended, and so does the node")
            self._server.shutdown.stop_by_signal("SIGTERM")

    # Users

    def _user_changed(self, name: bytes, line: bytes | None) -> None:
        """A client has changed or removed a user of this node."""
        self._changes += 1
        text = None if line is None else line.decode("latin-1")
        self._send({"change": self._changes, "user": name.decode("latin-1"), "line": text})

    def _users_loaded(self) -> None:
        """ACL LOAD: the other nodes read the file, too."""
        self._send({"loaded": True})

    def _take(self, message: dict[str, Any]) -> None:
        if "users" in message:
            self._is_loading_users = self._is_loading_users or message["loaded"]
            self._read_users(int(message["users"]))
        else:
            super()._take(message)

    def _read_users(self, seen: int) -> None:
        """The file of the users has changed; `seen` is the last change of this node in it."""
        if seen != self._changes:
            return  # the supervisor tells again when it has written the later ones
        try:
            self._server.user_store.read_again(keeps_clients=not self._is_loading_users)
        except CommandError as problem:
            LOGGER.error("the users of the other nodes cannot be read: %s", problem.message)
        self._is_loading_users = False
