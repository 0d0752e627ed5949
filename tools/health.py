"""`millstream health`: whether a server answers, for containers and scripts."""

from __future__ import annotations

import json
from contextlib import closing

import click

from millstream.seconds import Seconds
from millstream.tools.display import text
from millstream.tools.tool_connection import (
    ToolConnection,
    ToolError,
    chosen_url,
    lacks_permission,
    url_option,
    wants_password,
)


@click.command(
    epilog="Exit codes: 0 the server answers PING, asks for a password, or does not allow the user "
    "to run PING; 1 it does not answer, or is still loading its data."
)
@click.argument("server", required=False, metavar="[URL]")
@url_option
@click.option(
    "--timeout",
    "timeout_s",
    type=Seconds(0.001, 3600),
    default=5,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the answer.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def health(server: str | None, url: str, timeout_s: float, as_json: bool) -> None:
    """Check whether a server replies."""
    try:
        answer = _answer_of(chosen_url(server, url), timeout_s)
    except ToolError as problem:
        if as_json:
            click.echo(json.dumps({"healthy": False, "reason": problem.message}))
            raise SystemExit(1) from None
        raise
    click.echo(json.dumps({"healthy": True, "reply": answer}) if as_json else answer)


def _answer_of(url: str, timeout_s: float) -> str:
    """PONG, NOAUTH or NOPERM; ToolError for everything else."""
    try:
        with closing(ToolConnection(url, timeout_s)) as server:
            (reply,) = server.pipeline([["PING"]])
    except ToolError as problem:
        refusal = _refusal(problem.__cause__)  # redis-py introduces itself first
        if refusal:
            return refusal
        raise
    refusal = _refusal(reply)
    if refusal:
        return refusal
    if reply == b"PONG":
        return "PONG"
    raise ToolError(f"{server.name}: {text(reply) if isinstance(reply, bytes) else reply}")


def _refusal(answer: object) -> str:
    """The code of an error that a server sends only while it works; empty for all other replies."""
    if wants_password(answer):
        return "NOAUTH"
    return "NOPERM" if lacks_permission(answer) else ""
