"""`millstream call`: one command, and its reply as text or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import click

from millstream.errors import printable
from millstream.tools.display import quoted, text
from millstream.tools.tool_connection import (
    ToolConnection,
    ToolError,
    is_error,
    timeout_option,
    url_option,
)


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="Exit codes: 0 the server has replied; 1 it has replied with an error, or not at all.",
)
@url_option
@timeout_option("How long to wait for the reply.")
@click.option("--json", "as_json", is_flag=True, help="Print the reply as JSON.")
@click.argument("words", nargs=-1, required=True, metavar="WORD...")
def call(url: str, timeout_s: float, as_json: bool, words: Sequence[str]) -> None:
    """Send one command to a server and print the reply.

    Options come before the words of the command.
    """
    with closing(ToolConnection(url, timeout_s)) as server:
        (reply,) = server.pipeline([[word.encode("utf-8", "surrogateescape") for word in words]])
    if is_error(reply):
        raise ToolError(f"{server.name}: {_sent(reply)}")
    if as_json:
        click.echo(json.dumps(_plain(reply)))
    elif isinstance(reply, bytes):
        _print_text(reply)
    else:
        click.echo("\n".join(_lines(reply)))


def _print_text(reply: bytes) -> None:
    """A reply that is one text may have several lines, as INFO has."""
    lines = reply.removesuffix(b"\n").split(b"\n")
    if len(lines) > 1 and all(_is_printable(line) for line in lines):
        click.echo("\n".join(line.removesuffix(b"\r").decode() for line in lines))
    else:
        click.echo(printable(text(reply)))


def _is_printable(line: bytes) -> bool:
    try:
        return line.removesuffix(b"\r").decode().isprintable()
    except UnicodeDecodeError:
        return False


def _lines(reply: Any, mark: str = "") -> Iterator[str]:
    """A reply in the form of redis-cli; `mark` stands before the first line."""
    if not isinstance(reply, list | dict) or not reply:
        yield mark + _shown(reply)
        return
    width = len(str(len(reply)))
    for number, item in enumerate(reply, 1):
        if isinstance(reply, dict):
            yield from _lines(reply[item], f"{mark}{number:>{width}}# {_shown(item)} => ")
        else:
            yield from _lines(item, f"{mark}{number:>{width}}) ")
        mark = " " * len(mark)


def _shown(reply: Any) -> str:
    if isinstance(reply, bytes):
        return quoted(reply)
    if isinstance(reply, list):
        return "(empty array)"
    if isinstance(reply, dict):
        return "(empty hash)"
    if reply is None:
        return "(nil)"
    return f"(error) {_sent(reply)}" if is_error(reply) else f"(integer) {reply}"


def _sent(error: Any) -> str:
    """An error as the server sent it: redis-py removes the codes that it knows."""
    code = getattr(error, "status_code", None)
    return f"{code} {error}" if code else str(error)


def _plain(reply: Any) -> Any:
    if isinstance(reply, list):
        return [_plain(item) for item in reply]
    if isinstance(reply, dict):
        return {text(name): _plain(value) for name, value in reply.items()}
    if isinstance(reply, bytes):
        return text(reply)
    return {"error": _sent(reply)} if is_error(reply) else reply
