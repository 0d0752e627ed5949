"""`millstream cluster init --from-nodes`: asks nodes what they know, and writes it into etcd."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, TypeVar

import click

from millstream.cli_error import CliError
from millstream.server.cluster.backup_sources import node_url
from millstream.server.cluster.recollection import answer_of
from millstream.server.cluster.store.records import RecordError
from millstream.server.cluster.store.store import Store
from millstream.server.cluster.store.store_opening import StoreSettings
from millstream.server.cluster.store_cli import run_with_store
from millstream.server.cluster.store_recovery import (
    CHOICES,
    ExpectedSize,
    NodeAnswer,
    Recovery,
    Unrecoverable,
    recover,
    rows_of,
)
from millstream.tools.tool_connection import ToolConnection, ToolError, timeout_option, url_option

F = TypeVar("F", bound=Callable[..., Any])
PORT_MAX = 65535


def recovery_options(function: F) -> F:
    for option in (
        timeout_option("How long a node may take to answer."),
        url_option,
        click.option(
            "--lost", multiple=True, metavar="ID",
            help="A member whose data is lost, and will never be used again.",
        ),
        click.option(
            "--from-nodes", callback=_addresses, metavar="HOST:PORT,..",
            help="Addresses of the nodes that run. The user, the password and the TLS of --url are "
            "used for all; the user needs the right to CLUSTER SEEN.",
        ),
    ):  # fmt: skip
        function = option(function)
    return function


def _addresses(
    ctx: click.Context, param: click.Parameter, text: str | None
) -> tuple[tuple[str, int], ...]:
    return tuple(_address(one) for one in (text or "").replace(",", " ").split())


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
        raise click.UsageError(f"--from-nodes: {text} is not an address, such as 10.0.0.1:6455")
    return host, int(port)


def init_from_nodes(
    settings: StoreSettings,
    addresses: Sequence[tuple[str, int]],
    lost: Sequence[str],
    url: str,
    timeout_s: float,
    expected: ExpectedSize,
) -> None:
    """CliError, with nothing written, if the nodes do not know enough."""
    answers = []
    for host, port in addresses:
        try:
            answers.append(_ask(node_url(url, host, port), settings.name, timeout_s))
        except (ToolError, ValueError) as problem:
            text = problem.message if isinstance(problem, ToolError) else str(problem)
            click.echo(f"millstream: {text}", err=True)
    if not answers:
        raise CliError("no answer of these nodes can be used: etcd is as it was")
    done = run_with_store(settings, lambda store: _write(store, answers, lost, expected))
    for line in rows_of(done.shards):
        click.echo(line)


def _ask(url: str, cluster: str, timeout_s: float) -> NodeAnswer:
    """ValueError for a wrong answer, ToolError if there is none."""
    with closing(ToolConnection(url, timeout_s)) as server:
        reply = server.call("CLUSTER", "SEEN")
        try:
            return answer_of(reply, cluster, server.name.partition("://")[2])
        except ValueError as problem:
            raise ValueError(f"{server.name}: {problem}") from None


async def _write(
    store: Store, answers: Sequence[NodeAnswer], lost: Sequence[str], expected: ExpectedSize
) -> Recovery:
    try:
        found = recover(answers, await store.read(), lost, random.randrange(CHOICES))
        expected.check(found.shards)
    except (Unrecoverable, RecordError) as problem:
        raise CliError(f"{problem}. Nothing is written") from None
    if not (await store.commit(found.compares, found.changes)).done:
        raise CliError("etcd has been changed meanwhile: try again. Nothing is written")
    return found
