"""The transaction of a client of the gateway: which node gets MULTI, EXEC, DISCARD, WATCH, UNWATCH
and the requests between them."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.commands.table.registry import Command
from millstream.server.gateway import request_policies as policies
from millstream.server.gateway.client_requests import Sending, slot_of
from millstream.server.gateway.expected_replies import Answer, Call
from millstream.server.gateway.machine_nodes import Nodes
from millstream.server.gateway.node_connection import NodeConnection
from millstream.server.gateway.routing import RequestReader
from millstream.server.gateway.transaction import (
    CROSSSLOT,
    DISCARD,
    EXECABORT,
    MULTI,
    NESTED,
    OK,
    QUEUED,
    WATCH_INSIDE,
    Transaction,
)

NOT_IN_MULTI = "-ERR %s in a transaction is not served by the gateway\r\n"


class ClientTransaction:
    """Begins with WATCH or MULTI. There is no state before and after it."""

    def __init__(self, sending: Sending, nodes: Nodes, reader: RequestReader) -> None:
        self._sending = sending
        self._nodes = nodes
        self._reader = reader
        self._state: Transaction | None = None

    @property
    def is_open(self) -> bool:
        """True after MULTI."""
        return self._state is not None and self._state.is_open

    def is_at(self, upstream: NodeConnection) -> bool:
        return self._state is not None and self._state.upstream is upstream

    def note_failure(self) -> None:
        """A request after MULTI was refused: EXEC will be, too."""
        if self._state is not None and self._state.is_open:
            self._state.has_failed = True

    def note_lost_node(self) -> None:
        """The connection to its node has ended, and EXEC was not sent."""
        assert self._state is not None
        self._state.upstream, self._state.has_failed = None, True

    def refuse(self, text: str, words: Sequence[bytes]) -> None:
        self.note_failure()
        name = words[0].decode("ascii", "replace").upper()
        self._sending.answer((text % name).encode())

    def send_keyless(self, raw: bytes) -> None:
        """An unknown command, or a wrong number of arguments: a node answers it, in a transaction
        the one of its keys."""
        if self._state is None or self._state.upstream is None:
            self.note_failure()
            self._sending.send(self._sending.home_node(), raw)
        else:
            self._send(raw)

    def control(self, row: Command, words: list[bytes], raw: bytes) -> None:
        """MULTI, EXEC, DISCARD, WATCH, UNWATCH."""
        state = self._state
        if state is not None and state.is_void:
            state = self._state = None
        if row.name == "multi":
            if self.is_open:
                self._sending.answer(NESTED)
            else:
                self._begin(raw)
        elif row.name == "watch" and len(words) > 1:
            if self.is_open:
                self._sending.answer(WATCH_INSIDE)
            elif self._pin(slot_of(row, words)):
                self._watch(raw)
        elif state is None:
            self._sending.send(self._sending.home_node(), raw)  # UNWATCH, or an error
        elif row.name == "unwatch" and state.is_open:
            self.queue(row, policies.ANY, words, raw)
        else:
            self._finish(state, row.name, raw)

    def queue(self, row: Command, kind: int, words: list[bytes], raw: bytes) -> None:
        """A request after MULTI."""
        state = self._state
        assert state is not None
        is_for_all = kind == policies.ALL and row.name not in policies.AT_ONCE_IN_MULTI
        if is_for_all or kind in (policies.SESSION, policies.SUBSCRIPTION, policies.OWN):
            self.refuse(NOT_IN_MULTI, words)
            return
        slot = slot_of(row, words)
        if slot is None and state.upstream is None:
            if state.keep(raw):
                self._sending.answer(QUEUED)
            else:
                self.refuse(NOT_IN_MULTI, words)
        elif self._pin(slot):
            self._send(raw)

    def leave(self) -> None:
        self._state = None
        self._reader.keeps_together = True

    def _begin(self, raw: bytes) -> None:
        state = self._state = self._state or Transaction()
        state.is_open = True
        self._reader.keeps_together = False
        if state.upstream is None:
            self._sending.answer(OK)
        else:
            self._send(raw)

    def _pin(self, slot: int | None) -> bool:
        """Make this the slot of the transaction; False, and an error, if it is that of another."""
        state = self._state = self._state or Transaction()
        if state.slot is not None and slot is not None and state.slot != slot:
            self.note_failure()
            self._sending.answer(CROSSSLOT)
            return False
        if state.upstream is None:
            node = self._sending.node_of(slot)
            if node in self._nodes.failed:
                if state.is_open:
                    state.has_failed = True
                else:
                    self.leave()  # nothing is watched
                self._sending.answer(self._nodes.unreachable(node))
                return False
            state.upstream = self._sending.upstream(node)
            if state.is_open:
                before = [MULTI, *state.kept]
                state.upstream.send(b"".join(before), Call(_ignore, len(before)))
        state.slot = slot if state.slot is None else state.slot
        return True

    def _send(self, raw: bytes) -> None:
        """A request for the node of the transaction."""
        assert self._state is not None
        assert self._state.upstream is not None
        self._sending.send(self._state.upstream.node, raw, is_open=False)

    def _watch(self, raw: bytes) -> None:
        """A WATCH, which counts unless it is refused. It is not sent again."""
        state, order = self._state, self._sending.order
        assert state is not None
        assert state.upstream is not None
        state.watches += 1
        answer = Answer()
        order.append(answer)

        def take(reply: bytes) -> None:
            state.watches -= reply.startswith(b"-")
            order.complete(answer, reply)

        state.upstream.send(raw, Call(take, 1, answer))

    def _finish(self, state: Transaction, name: str, raw: bytes) -> None:
        """EXEC, DISCARD, or UNWATCH outside a transaction."""
        if name == "exec" and state.has_failed:
            if state.upstream is not None:
                state.upstream.send(DISCARD, Call(_ignore))
            self._sending.answer(EXECABORT)
        elif name == "discard" and state.upstream is None:
            self._sending.answer(OK)
        elif not state.is_open and name != "unwatch":
            self._send(raw)  # the node knows the words of the error
            return
        elif self._pin(None):
            self._send(raw)
        self.leave()


def _ignore(reply: bytes) -> None:
    """The gateway has answered for the node; an error shows at EXEC."""
