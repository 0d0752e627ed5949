"""`millstream dashboard`: its command line, and serving the application."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import click
import uvicorn

from millstream.dashboard.actions import LOGGER
from millstream.dashboard.app import make_app
from millstream.dashboard.guard import LOCAL_NAMES
from millstream.dashboard.proxied import checked_prefix
from millstream.listening import ListenError, bind_host
from millstream.remote import DEFAULT_URL, url_reason_of
from millstream.url_file import url_file_option, url_of_file

PORT = 6480
STOP_S = 2  # for browsers that follow a stream
REQUESTS_MAX = 200
HEADER_MAX = 16_384  # bytes


class Reached(NamedTuple):
    """The ways to the dashboard: the options about names and proxies."""

    hosts: tuple[str, ...]
    prefix: str
    trust_proxy: bool


@click.command(epilog="The password of the server may come from REDISCLI_AUTH.")
@click.argument("url", required=False, metavar="[URL]", envvar="MILLSTREAM_URL")
@url_file_option(click.ClickException)
@click.option("--bind", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=PORT, show_default=True, help="Port."
)
@click.option(
    "--password-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the password that browsers must send; needed to listen on other addresses.",
)
@click.option(
    "--host", "hosts", multiple=True, metavar="NAME",
    help="Host name that browsers use to reach the dashboard; repeatable.",
)  # fmt: skip
@click.option(
    "--prefix", default="", metavar="PATH",
    help="Path under which a proxy serves the dashboard, for example /ms.",
)  # fmt: skip
@click.option(
    "--trust-proxy", is_flag=True,
    help="Log the address and the user that a proxy sends (X-Forwarded-For, X-Forwarded-User).",
)  # fmt: skip
@click.option("--actions", is_flag=True, help="Allow changes: acknowledge, claim, trim, delete.")
def dashboard(
    url: str | None,
    bind: str,
    port: int,
    password_file: Path | None,
    actions: bool,
    **names: Any,
) -> None:
    """Show streams and groups in a browser.

    URL is redis://, rediss:// or unix://; by default redis://127.0.0.1:6455. Redis servers work,
    too. The dashboard has the permissions of the user in the URL.
    """
    password = _password(password_file)
    if not _is_local(bind) and password is None:
        raise click.ClickException(f"--bind {bind} needs --password-file")
    shown = bind if ":" not in bind else f"[{bind}]"
    url = url_of_file(click.get_current_context(), "url", "URL") or url or DEFAULT_URL
    reached = Reached(**names)
    path = _prefix(reached.prefix)
    try:
        app = make_app(
            url,
            has_actions=actions,
            hosts=allowed_hosts([*LOCAL_NAMES, shown], port, reached.hosts),
            any_address=bind in ("0.0.0.0", "::"),
            password=password,
            prefix=path,
            trusts_proxy=reached.trust_proxy,
        )
    except ValueError as problem:
        raise click.ClickException(f"the URL is invalid: {url_reason_of(problem)}") from None
    try:
        sockets = bind_host(bind, port)
    except ListenError as problem:
        raise click.ClickException(str(problem)) from None
    click.echo(f"The dashboard is at http://{shown}:{port}{path}/", err=True)
    _log_actions()
    # Without proxy_headers=False, uvicorn believes every local client that sends X-Forwarded-For.
    server = uvicorn.Server(uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, proxy_headers=False,
        timeout_graceful_shutdown=STOP_S, limit_concurrency=REQUESTS_MAX,
        h11_max_incomplete_event_size=HEADER_MAX,
    ))  # fmt: skip
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn has stopped in an orderly way by then
        server.run(sockets=sockets)


def allowed_hosts(names: Sequence[str], port: int, extra: Sequence[str]) -> set[str]:
    """The Host headers of requests to these names. Those of --host are also allowed without the
    port, because a proxy may have another one; browsers leave out port 80."""
    without_port = {*names, *extra} if port == 80 else set(extra)
    return {f"{name}:{port}" for name in (*names, *extra)} | without_port


def _prefix(text: str) -> str:
    try:
        return checked_prefix(text)
    except ValueError as problem:
        raise click.ClickException(f"--prefix {text}: {problem}") from None


class _LineFormat(logging.Formatter):
    """The time with its offset from UTC, and the message."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created).astimezone()
        return f"{moment.isoformat(' ', 'milliseconds')} {record.getMessage()}"


def _log_actions() -> None:
    """Write the lines of actions to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(_LineFormat())
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False


def _password(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        text = file.read_text().strip("\r\n")
    except (OSError, UnicodeDecodeError) as problem:
        raise click.ClickException(f"{file} cannot be read: {problem}") from None
    if not text:
        raise click.ClickException(f"{file} has no password")
    return text


def _is_local(bind: str) -> bool:
    try:
        return ipaddress.ip_address(bind).is_loopback
    except ValueError:
        return bind == "localhost"
