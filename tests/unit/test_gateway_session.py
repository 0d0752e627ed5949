"""The memory of the gateway for each client: the words about itself, and its channels."""

from __future__ import annotations

from tests.support.resp import encode_command

from millstream.server.gateway.client_session import ClientSession
from millstream.server.gateway.subscriptions import Change, Subscriptions


def said(*lines: str) -> list[bytes]:
    """The bytes that a new connection is sent after these requests."""
    session = ClientSession()
    for line in lines:
        words = line.encode().split()
        name = words[0].lower() + (b"|" + words[1].lower() if words[0] == b"CLIENT" else b"")
        session.note(name.decode(), words)
    return session.requests()


def encoded(*lines: str) -> list[bytes]:
    return [encode_command(line.split()) for line in lines]


def test_a_later_hello_changes_only_what_it_names() -> None:
    assert said("HELLO 3 AUTH ann pw SETNAME one", "HELLO") == encoded(
        "AUTH ann pw", "HELLO 3", "CLIENT SETNAME one"
    )
    assert said("HELLO 3 AUTH ann pw", "HELLO 2") == encoded("AUTH ann pw", "HELLO 2")
    assert said("HELLO 3 AUTH ann pw", "AUTH bob pw") == encoded("AUTH bob pw", "HELLO 3")
    assert said("CLIENT SETNAME one", "HELLO 3 setname two") == encoded(
        "HELLO 3", "CLIENT SETNAME two"
    )


def test_each_attribute_of_the_library_is_kept() -> None:
    lines = ["CLIENT SETINFO LIB-NAME py", "CLIENT SETINFO LIB-VER 1"]
    assert said(*lines, "CLIENT SETINFO lib-ver 2") == encoded(lines[0], "CLIENT SETINFO lib-ver 2")


def test_a_reset_session_has_nothing() -> None:
    session = ClientSession()
    session.note("hello", [b"HELLO", b"3"])
    assert session.is_resp3
    session.clear()
    assert not session.is_resp3
    assert session.requests() == []


def requests(changes: list[Change]) -> list[tuple[int, bytes, int]]:
    return [change[:3] for change in changes]


def test_without_names_all_nodes_with_channels_are_told() -> None:
    channels = Subscriptions()
    for node, name in enumerate((b"a", b"b")):
        list(channels.change("ssubscribe", [b"SSUBSCRIBE", name], node))
    list(channels.change("subscribe", [b"SUBSCRIBE", b"x", b"y"], 2))
    assert channels.nodes() == {0, 1, 2}
    changes = list(channels.change("sunsubscribe", [b"SUNSUBSCRIBE"], 2))
    assert requests(changes) == [
        (0, *encoded("SUNSUBSCRIBE a"), 1),
        (1, *encoded("SUNSUBSCRIBE b"), 1),
    ]
    assert channels.nodes() == {2}
    assert requests(list(channels.change("sunsubscribe", [b"SUNSUBSCRIBE"], 1))) == [
        (1, *encoded("SUNSUBSCRIBE"), 1)
    ]
    assert requests(list(channels.change("unsubscribe", [b"UNSUBSCRIBE"], 2)))[0][2] == 2


def test_a_refused_request_changes_no_channels() -> None:
    channels = Subscriptions()
    list(channels.change("subscribe", [b"SUBSCRIBE", b"x"], 0))
    [change] = channels.change("subscribe", [b"SUBSCRIBE", b"y", b"z"], 0)
    change.undo()
    [change] = channels.change("unsubscribe", [b"UNSUBSCRIBE"], 0)
    assert change.confirmations == 1
