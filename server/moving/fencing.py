"""The fence of a cut-over: a Redis that refuses writes, or holds them, until that is undone."""

from __future__ import annotations

from millstream.remote import pairs
from millstream.tools.tool_connection import ToolConnection, ToolError, is_error

REPLICAS = "1000000"  # that a source wants before it accepts a write
LAG_S = "10"  # with 0, a Redis ignores the number of replicas
DAY_MS = 86_400_000
_TO_WRITE, _MAX_LAG = "min-replicas-to-write", "min-replicas-max-lag"


class Fence:
    """The fence of one server. `text` says how it refuses writes, and `undo` how to end that.
    `holds_writers`: it is a pause, because CONFIG is forbidden there."""

    def __init__(self, server: ToolConnection) -> None:
        self.text = self.undo = ""
        self.holds_writers = False
        self._server = server
        self._undo: list[tuple[str, ...]] = []  # requests, the last one first

    def is_up(self) -> bool:
        """True if the server has the directives of a fence."""
        return _is_effective(self._directives())

    def put_up(self) -> None:
        """ToolError if that fails; `take_down` is needed then, too."""
        before = self._directives()
        if before and self._set(before):
            self.text = f"{_TO_WRITE} {REPLICAS}"
            return
        # Where CONFIG is forbidden: the clients that wait are closed, and others wait.
        self.take_down()
        self.holds_writers = True
        self.text = "CONFIG is forbidden there: writers were closed, and wait for a day"
        self.undo = "CLIENT UNPAUSE"
        self._undo.append(("CLIENT", "UNPAUSE"))
        self._server.call("CLIENT", "PAUSE", DAY_MS, "WRITE")
        self._server.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def take_down(self) -> None:
        """Undo everything that was done, also what may have been done."""
        while self._undo:
            self._server.call(*self._undo[-1])
            self._undo.pop()

    def _directives(self) -> dict[str, str]:
        """The directives, as far as the server shows them."""
        (reply,) = self._server.pipeline([("CONFIG", "GET", "min-replicas-*")])
        if not isinstance(reply, list):
            return {}
        return {name: value.decode() for name, value in pairs(reply).items()}

    def _set(self, before: dict[str, str]) -> bool:
        """Set the directives, and read them again. False if the server refuses that."""
        wanted = [(_TO_WRITE, REPLICAS)]
        if before.get(_MAX_LAG) == "0":
            wanted.insert(0, (_MAX_LAG, LAG_S))
        self.undo = ", ".join(f"CONFIG SET {name} {before.get(name, '0')}" for name, _ in wanted)
        for name, value in wanted:
            self._undo.append(("CONFIG", "SET", name, before.get(name, "0")))
            (done,) = self._server.pipeline([("CONFIG", "SET", name, value)])
            if is_error(done):
                self._undo.pop()
                return False
        after = self._directives()
        if not _is_effective(after):
            raise ToolError(f"{self._server.name} does not keep the fence: it has {after}")
        return True


def _is_effective(directives: dict[str, str]) -> bool:
    return directives.get(_TO_WRITE) == REPLICAS and directives.get(_MAX_LAG) != "0"
