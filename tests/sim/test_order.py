"""Clients continue in the same order in the model and in the server."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.players import Profile
from tests.sim.simulation import Simulation
from tests.sim.users import LOGIN, USER
from tests.sim.world import SimClient

ALLOWED = (b"ACL", b"SETUSER", USER, b"reset", b"on", b"nopass", b"+@all", b"~*")
DENIED = (b"ACL", b"SETUSER", USER, b"reset", b"on", b"nopass", b"+@all", b"-tread", b"~*")
WAIT = (b"TREAD", b"s0", b"$", b"1", b"BLOCK", b"0")


class Play(Simulation):
    """A simulation whose only step is a function of the test."""

    def __init__(self, profile: Profile, script: Callable[[Play], None]) -> None:
        super().__init__(0, 1, profile)
        self._script = script

    def _step(self) -> None:
        self._script(self)

    @property
    def clients(self) -> list[SimClient]:
        return list(self.world.clients.values())

    def say(self, client: SimClient, *requests: tuple[bytes, ...]) -> None:
        for request in requests:
            client.ask(request)
        self._feed(client, *client.take(len(client.unsent)))
        self._look()

    def settle(self) -> None:
        self._settle()

    def can_send(self, client: SimClient) -> bool:
        return self._can_send(client)

    def run_some_work(self) -> None:
        """Run a callback of the loop, or a task of a worker if there is no callback."""
        if self.world.loop.has_work():
            self._run_loop()
        else:
            self._run_worker()
        self._look()


def test_readers_denied_by_new_rules_keep_their_connection_order() -> None:
    def script(play: Play) -> None:
        first, second, ruler = play.clients
        play.say(ruler, ALLOWED)
        play.say(second, LOGIN, WAIT, (b"PING",))
        play.say(first, LOGIN, WAIT)
        play.settle()
        assert play.world.executor.blocked_count == 2
        play.say(ruler, DENIED)
        play.settle()
        assert play.world.executor.blocked_count == 0

    Play(Profile(clients=3), script).run()


def test_a_scanner_sends_nothing_from_its_disk_wait_to_its_turn() -> None:
    """A long reply would begin in between, and then the server gives the client no such turn."""

    def script(play: Play) -> None:
        scanner, writer = play.clients
        play.say(writer, (b"TAPPEND", b"s0", b"n", b"1"))
        while not play.world.executor.queue_full:
            play.run_some_work()
        play.say(scanner, (b"TAPPEND", b"s0", b"n", b"2"))
        assert list(play.world.executor.backpressure.clients) == [scanner.id]
        while scanner.is_stopped():
            play.run_some_work()
        assert scanner.model.requests
        assert not play.can_send(scanner)
        play.settle()
        assert play.can_send(scanner)

    Play(Profile(clients=2, roles="scanner", queue_bytes=1), script).run()
