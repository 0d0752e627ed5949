"""What is left out of the suites is really not there: the server itself is asked."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from tests.support import needs
from tests.support.client import RawClient
from tests.support.recordings import read_recording
from tests.support.resp import Error
from tests.support.transcript import read_folder

from millstream.commands.table.registry import COMMANDS

SECTIONS = read_folder(needs.TRANSCRIPTS)
REASONS = needs.missing_in_recording(read_recording(needs.RECORDING))


def named_as_missing() -> set[str]:
    """All that some transcript or recording waits for."""
    return {
        name
        for names in [*map(needs.missing_in, SECTIONS), REASONS]
        for name in names
        if name is not None
    }


def refuses(client: RawClient, name: str) -> bool:
    """Whether the server does not know what is named."""
    if name in needs.OPTIONS:
        return isinstance(client.call(*shlex.split(needs.OPTIONS[name])), Error)
    value = ["value"] if name.startswith("CONFIG SET ") else []
    reply = client.call(*name.split(), *value)
    return isinstance(reply, Error) and reply.text.lower().startswith("err unknown ")


@pytest.fixture
def prepared(client: RawClient) -> RawClient:
    """A client of a server that has the stream and the group of OPTIONS' requests."""
    assert client.call("XADD", "s", "1-1", "f", "v") == b"1-1"
    client.call("XGROUP", "CREATE", "s", "g", "0")
    return client


def test_the_server_refuses_what_is_left_out(prepared: RawClient) -> None:
    known = {name for name in named_as_missing() if not refuses(prepared, name)}
    assert not known, "the server has this"


@pytest.mark.parametrize("name", needs.OPTIONS)
def test_an_option_is_left_out_if_and_only_if_the_server_refuses_it(
    prepared: RawClient, name: str
) -> None:
    assert refuses(prepared, name) is not needs.is_there(name)


@pytest.mark.parametrize(
    "words",
    ["PING", "xAdd s * f v", "CLIENT ID", "CLIENT", "XREADGROUP GROUP g a STREAMS s >"],
)
def test_what_the_server_has_is_not_missing(words: str) -> None:
    assert needs.missing(words.split()) is None


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("nosuch s g", "NOSUCH"),
        ("CLIENT nosuch 5", "CLIENT NOSUCH"),
        ("CONFIG SET port 1 nosuch 5", "CONFIG SET nosuch"),
    ],
)
def test_what_the_server_has_not_is_named(words: str, name: str) -> None:
    assert needs.missing(words.split()) == name


def test_a_command_comes_in_on_the_day_it_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    nosuch = replace(COMMANDS[b"xinfo"], name="nosuch")
    monkeypatch.setitem(COMMANDS, b"nosuch", nosuch)
    assert needs.is_there("NOSUCH")
    assert needs.is_there("NOSUCH STREAM")
    assert not needs.is_there("NOSUCH NOSUCH")


def test_an_option_comes_in_with_its_syntax(monkeypatch: pytest.MonkeyPatch) -> None:
    for syntax, is_there in (("key value", False), ("key value [EX seconds]", True)):
        monkeypatch.setitem(COMMANDS, b"set", replace(COMMANDS[b"set"], syntax=syntax))
        assert needs.is_there("SET EX") is is_there


RECORDING = [
    ("XADD s 1-1 f v", "$'1-1'", None),
    ("NOSUCH s g 5", ":1", "NOSUCH"),
    ("XLEN s", ":1", "NOSUCH"),
    ("XLEN s s", "-ERR wrong number of arguments for 'xlen' command", None),
    ("XLEN t", ":0", None),
    ("DEL s", ":1", None),
    ("XLEN s", ":0", None),
    ("NOSUCH t", "-ERR syntax error", "NOSUCH"),
    ("XLEN t", ":0", None),
]


def test_with_a_missing_command_goes_what_shows_its_work() -> None:
    pairs = [(line, reply) for line, reply, _ in RECORDING]
    assert needs.missing_in_recording(pairs) == [reason for _, _, reason in RECORDING]
