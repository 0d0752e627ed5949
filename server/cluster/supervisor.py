"""The supervisor: starts the nodes of one machine and their gateways, restarts those that end, and
stops all of them.

It serves no client itself. Each process has one end of a socket pair: over it, the process says
that it is ready, and the supervisor sends the states of the nodes. A process that ends is started
again after 1, 2, 4 .. 30 seconds. If one cannot be started the first time, the others are stopped
and the supervisor ends: the configuration has to be corrected. Gateways are started when all nodes
serve clients, or 5 seconds later than the nodes, and are stopped first.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from millstream import __version__
from millstream.backoff import Backoff
from millstream.errors import StartError
from millstream.server.cluster.shared_users import SharedUsers
from millstream.server.cluster.states import FAILED, LOADING, ONLINE, NodeState
from millstream.server.cluster.unix_sockets import SUPERVISOR, listening_socket
from millstream.server.config.cluster_directives import NODE_COUNT_VARIABLE, SUPERVISOR_VARIABLE
from millstream.server.config.directives import Config
from millstream.server.monitor import log
from millstream.server.monitor.log import LOGGER, PROCESS_VARIABLE
from millstream.server.process import PidFile, Supervision

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
# A node that has served for this long is started again after the first pause.
STABLE_S = 60.0
BETWEEN_S = 1.0
SILENT_S = 5.0  # a node that has sent no state for this long hangs
GATEWAY_START_S = 5.0  # a gateway waits no longer for nodes at the start
GATEWAY_STOP_S = 5.0  # a gateway that has not ended by then hangs
LINE_BYTES = 64 << 20  # the rules of a user may be long
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})

Message = dict[str, Any]


class NodeProcess:
    """The process of a node, or that of a gateway, whose number is 0. `pid` is None while it does
    not run. `take` is called with each message of the process, and with an empty one when it has
    ended."""

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        take: Callable[[NodeProcess, Message], None],
        variables: Mapping[str, str] = NO_VARIABLES,
        name: str = "",
    ) -> None:
        """`variables` are added to the environment of the process."""
        self.number = number
        self.name = name or f"node {number:04}"
        self._variables = variables
        self._command = command
        self._take = take
        self.frame = 0
        self.pong_ms = 0
        self.was_ready = False
        self._health = LOADING
        self._heard_s: float | None = None  # the time of the last state of this process
        self._is_stop_due = False  # SIGTERM came before the process existed
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def health(self) -> str:
        is_silent = self._heard_s is not None and time.monotonic() - self._heard_s > SILENT_S
        return FAILED if is_silent else self._health

    def state(self) -> NodeState:
        return NodeState(self.health, self.pong_ms, self.frame)

    async def run(self) -> int:
        """Start the process and wait for its end; its exit code."""
        self._is_stop_due = False
        ours, theirs = socket.socketpair()
        environment = {
            **os.environ,
            **self._variables,
            SUPERVISOR_VARIABLE: str(theirs.fileno()),
            PROCESS_VARIABLE: self.name.removeprefix("the "),
        }
        try:
            # A session of its own: Ctrl-C in a terminal is for the supervisor.
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        if self._is_stop_due:
            self.signal(signal.SIGTERM)
        reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=LINE_BYTES)
        try:
            while line := await reader.readline():
                self._take(self, json.loads(line))
        except ConnectionError:
            pass  # it has ended, with messages that it has not read
        except ValueError as problem:
            LOGGER.error("%s is ended, because of its message: %s", self.name, problem)
            self.signal(signal.SIGKILL)
        code = await self._process.wait()
        self._process = None
        self._writer.close()
        self._writer = None
        self._health, self._heard_s = FAILED, None
        self._take(self, {})
        return code

    def note(self, state: Message) -> bool:
        """Note the state that the node has sent; return whether its health has changed."""
        before = self.health
        self._health, self._heard_s = str(state["health"]), time.monotonic()
        self.frame, self.pong_ms = int(state["frame"]), time.time_ns() // 1_000_000
        self.was_ready = self.was_ready or self._health == ONLINE
        return self._health != before

    def tell_state(self, message: bytes) -> None:
        """Send a line to the node, unless it is slow: the next one has the same and more."""
        if self._writer is not None and not self._writer.transport.get_write_buffer_size():
            self._writer.write(message)

    def tell(self, message: Message) -> None:
        """Send the node a message that it must get, if it runs."""
        if self._writer is not None:
            self._writer.write(json.dumps(message).encode() + b"\n")

    def signal(self, number: int) -> None:
        """Send the process a signal, if it runs."""
        if self._process is None:
            self._is_stop_due = self._is_stop_due or number == signal.SIGTERM
        else:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


class Supervisor:
    """Runs the nodes until a signal stops them. The exit code is 0 if all of them have ended
    well."""

    def __init__(
        self,
        config: Config,
        commands: Sequence[Sequence[str]],
        users: SharedUsers,
        gateways: Sequence[Sequence[str]] = (),
    ) -> None:
        """`commands` has the command line of each node, `gateways` that of each gateway."""
        self._config = config
        self._users = users
        self._nodes = [
            NodeProcess(number, command, self._take, {NODE_COUNT_VARIABLE: str(len(commands))})
            for number, command in enumerate(commands, start=1)
        ]
        self._gateways = [
            NodeProcess(0, command, self._take, name=_name_of_gateway(number, len(gateways)))
            for number, command in enumerate(gateways, start=1)
        ]
        self._pid_file = PidFile(config.located(config.pidfile))
        self._supervision = Supervision(config.supervised)
        self._stopping = asyncio.Event()
        self._gateways_due = asyncio.Event()  # all nodes serve, or a stop was requested
        self._has_failed = False
        self._is_told_ready = False

    @classmethod
    async def serve(
        cls,
        config: Config,
        commands: Sequence[Sequence[str]],
        users: SharedUsers,
        gateways: Sequence[Sequence[str]] = (),
    ) -> int:
        """Make a supervisor in the running loop, and run it."""
        return await cls(config, commands, users, gateways).run()

    def _all(self) -> list[NodeProcess]:
        return self._nodes + self._gateways

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        loop.add_signal_handler(signal.SIGUSR1, self._pass_on, signal.SIGUSR1)
        self._supervision.watch(loop)
        self._pid_file.write()
        answering = await asyncio.start_unix_server(
            self._answer, sock=listening_socket(self._config.dir, SUPERVISOR)
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                telling = tasks.create_task(self._tell_states())
                running = [tasks.create_task(self._keep_running(node)) for node in self._all()]
                await asyncio.wait(running)
                telling.cancel()
        finally:
            answering.close()
            (self._config.dir / SUPERVISOR).unlink(missing_ok=True)
            self._pid_file.remove()
        LOGGER.info("cluster  all nodes have ended")
        self._supervision.close()
        return int(self._has_failed)

    # The nodes

    async def _keep_running(self, node: NodeProcess) -> None:
        pauses = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        if node in self._gateways:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gateways_due.wait(), GATEWAY_START_S)
        while not self._stopping.is_set():
            begun_s = time.monotonic()
            try:
                code = await node.run()
            except OSError as problem:
                LOGGER.error("%s cannot be started: %s", node.name, problem.strerror)
                code = 1
            if self._stopping.is_set():
                # SIGTERM ends a node that is only just starting, before it can handle it.
                self._has_failed = self._has_failed or code not in (0, -signal.SIGTERM)
                return
            if not node.was_ready:
                LOGGER.error("%s could not be started: all nodes are stopped", node.name)
                self._has_failed = True
                self._stop(signal.SIGTERM)
                return
            if time.monotonic() - begun_s >= STABLE_S:
                pauses.reset()
            pause_s = pauses.next_s()
            LOGGER.error(
                "%s has ended %s: it is started again in %.0f s",
                node.name, _in_words(code), pause_s,
            )  # fmt: skip
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)

    def _take(self, node: NodeProcess, message: Message) -> None:
        """A node has sent a message, or has ended."""
        if not message:
            self._users.forget(node.number)
            self._note_change()
            if node in self._gateways and self._stopping.is_set() and not self._has_gateway():
                self._pass_on(signal.SIGTERM)
        elif "health" in message:
            if node.note(message):
                self._note_change()
        elif "loaded" in message:
            self._tell_users(loaded=True)
        else:
            name, line = message["user"].encode("latin-1"), message["line"]
            encoded = None if line is None else line.encode("latin-1")
            if self._users.change(node.number, message["change"], name, encoded):
                self._tell_users()

    def _tell_users(self, *, loaded: bool = False) -> None:
        """The file of the users has changed: all nodes read it. `loaded`: because of ACL LOAD."""
        for node in self._nodes:
            node.tell({"users": self._users.seen.get(node.number, 0), "loaded": loaded})

    def _note_change(self) -> None:
        """The health of a node has changed: tell the others at once."""
        self._send_states()
        if all(node.health == ONLINE for node in self._nodes):
            self._gateways_due.set()
        if not self._is_told_ready and all(node.health == ONLINE for node in self._all()):
            self._is_told_ready = True
            where = self._where()
            LOGGER.info(
                "ready    millstream %s: %d nodes listen on %s%s (process %d)",
                __version__, len(self._nodes), where, self._where_gateway(), os.getpid(),
            )  # fmt: skip
            self._supervision.ready(where)

    def _where(self) -> str:
        count = len(self._nodes)
        found = [
            f"{name} {first + 1} to {first + count}"
            for name, first in (("ports", self._config.port), ("TLS ports", self._config.tls.port))
            if first
        ]
        return " and ".join(found)

    def _where_gateway(self) -> str:
        count = len(self._gateways)
        what = "the gateway" if count == 1 else f"{count} gateways"
        return f", {what} on port {self._config.port}" if count else ""

    async def _tell_states(self) -> None:
        while True:
            self._send_states()
            await asyncio.sleep(BETWEEN_S)

    def _send_states(self) -> None:
        states = {node.number: node.state() for node in self._nodes}
        message = json.dumps({"nodes": states}).encode() + b"\n"
        for node in self._all():
            node.tell_state(message)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer `millstream cluster status`, or a gateway: one line, whatever is asked."""
        base = self._config.port or self._config.tls.port
        nodes = {
            node.number: {
                "health": node.health,
                "port": base + node.number,
                "pid": node.pid,
                "frame": node.frame,
            }
            for node in self._nodes
        }
        answer: Message = {"pid": os.getpid(), "nodes": nodes}
        answer["hosts"] = list(self._config.bind)
        answer["port"], answer["tls_port"] = self._config.port, self._config.tls.port
        answer["gateways"] = [
            {"health": gateway.health, "port": base, "pid": gateway.pid}
            for gateway in self._gateways
        ]
        writer.write(json.dumps(answer).encode() + b"\n")
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()

    # Signals

    def _stop(self, number: int) -> None:
        """Stop the gateways and then the nodes; a second signal is passed on, too, and ends all at
        once."""
        is_first = not self._stopping.is_set()
        if is_first:
            LOGGER.info("stopping: received %s", signal.Signals(number).name)
            self._supervision.stopping()
            self._stopping.set()
            self._gateways_due.set()
        if is_first and self._has_gateway():
            for gateway in self._gateways:
                gateway.signal(signal.SIGTERM)
            asyncio.get_running_loop().call_later(GATEWAY_STOP_S, self._end_gateways)
        else:
            self._pass_on(signal.SIGTERM)

    def _has_gateway(self) -> bool:
        """True while a gateway runs."""
        return any(gateway.pid is not None for gateway in self._gateways)

    def _end_gateways(self) -> None:
        """The nodes are stopped when all gateways have ended."""
        for gateway in self._gateways:
            if gateway.pid is not None:
                LOGGER.error("%s does not stop: it is killed", gateway.name)
                gateway.signal(signal.SIGKILL)

    def _reload(self) -> None:
        """SIGHUP: open the log file again. All processes read the configuration file again."""
        config = self._config
        try:
            log.configure(config.loglevel, config.located(config.logfile), config.log_format)
        except StartError as problem:
            LOGGER.error("SIGHUP: %s; the log continues where it was", problem)
        self._pass_on(signal.SIGHUP)

    def _pass_on(self, number: int) -> None:
        for node in self._all():
            node.signal(number)


def _name_of_gateway(number: int, count: int) -> str:
    return "the gateway" if count == 1 else f"gateway {number}"


def _in_words(code: int) -> str:
    """An exit code of a process."""
    if code >= 0:
        return f"with code {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"
