"""The commands of `millstream cluster` that move slots between shards."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import click

from millstream.cli_error import CliError
from millstream.errors import counted
from millstream.server.cluster.cluster_view import view_of
from millstream.server.cluster.slot_moves.move_canceling import cancel_moves
from millstream.server.cluster.slot_moves.move_orders import (
    add_shard,
    follow_moves,
    order_equal_shares,
    order_moves,
)
from millstream.server.cluster.slot_moves.move_rules import count_of, parse_slots
from millstream.server.cluster.store.records import MoveRecord, Step
from millstream.server.cluster.store.store import Store
from millstream.server.cluster.store.store_opening import StoreSettings
from millstream.server.cluster.store_cli import (
    durable_option,
    given,
    members_option,
    run_with_store,
    store_options,
)
from millstream.server.config.store_directives import SHARD_NAME

NO_WAIT = click.option(
    "--no-wait", is_flag=True, help="Do not wait for the end: `millstream cluster status` shows it."
)


@click.command("move")
@click.argument("slots")
@click.argument("shard")
@store_options
@NO_WAIT
def move_command(slots: str, shard: str, no_wait: bool, **settings: str) -> None:
    """Move SLOTS, such as 0-1000,1500, to SHARD.

    Clients read and write meanwhile. The exit code is 0 if all slots have moved, and 1 otherwise;
    then they stay where they were. With Ctrl-C, the moves continue.
    """
    try:
        ranges = parse_slots(slots)
    except ValueError as problem:
        raise CliError(str(problem)) from None
    _move(lambda store: order_moves(store, ranges, shard, _warn), settings, waits=not no_wait)


@click.command("rebalance")
@store_options
@NO_WAIT
def rebalance_command(no_wait: bool, **settings: str) -> None:
    """Move slots until each shard has as many as the others.

    As few slots as possible move, up to 1024 at a time. Shards whose nodes do not run are left out
    if they have no slots. The exit code is 0 if all slots have moved, and 1 otherwise.
    """
    _move(lambda store: order_equal_shares(store, "", _warn), settings, waits=not no_wait)


@click.command("drain")
@click.argument("node", callback=given)
@store_options
@NO_WAIT
def drain_command(node: str, no_wait: bool, **settings: str) -> None:
    """Move all slots of the shard of NODE to the other shards.

    NODE is the ID of a node, the beginning of the ID, or the name of a shard. Its nodes can be
    stopped then. The exit code is 0 if all slots have moved, and 1 otherwise.
    """
    _move(lambda store: order_equal_shares(store, node, _warn), settings, waits=not no_wait)


def _warn(sentence: str) -> None:
    click.echo(f"millstream: warning: {sentence}", err=True)


def _move(
    order: Callable[[Store], Coroutine[Any, Any, dict[str, MoveRecord]]],
    settings: dict[str, str],
    *,
    waits: bool,
) -> None:
    async def run(store: Store) -> dict[str, MoveRecord]:
        orders = await order(store)
        return await follow_moves(store, orders, click.echo) if waits else orders

    try:
        moves = run_with_store(StoreSettings(**settings), run)
    except KeyboardInterrupt:
        raise CliError("the moves continue: `millstream cluster status` shows them") from None
    if not moves:
        click.echo("no slots have to move")
        return
    count = sum(count_of(record.slots) for record in moves.values())
    if not waits:
        click.echo(f"{counted(count, 'slot')} will move")
        return
    done = sum(count_of(one.slots) for one in moves.values() if one.step is Step.DONE)
    click.echo(f"{done} of {counted(count, 'slot')} moved")
    if done < count:
        raise SystemExit(1)


@click.command("cancel")
@click.argument("shard", required=False, default="")
@store_options
@click.option(
    "--force", is_flag=True,
    help="The old shards serve slots of a hand-over again without an answer of SHARD. Use it only "
    "if SHARD is lost for ever: otherwise, two shards may serve the slots, and writes get lost.",
)  # fmt: skip
def cancel_command(shard: str, force: bool, **settings: str) -> None:
    """Cancel the moves of slots to SHARD, or all.

    The slots stay where they are; those that have moved already stay at their new shard. No node
    has to run.
    """
    if force and not shard:
        raise click.UsageError("--force needs the name of the shard that is lost.")

    async def run(store: Store) -> int:
        view = view_of(await store.read())
        if shard and shard not in view.shards:
            raise CliError(f"there is no shard {shard}")
        if force and shard in view.holders:
            raise CliError(
                f"shard {shard} has a primary, which says whether it serves the slots: cancel "
                "without --force"
            )
        return len(
            await cancel_moves(
                store, lambda _, record: shard in ("", record.target), is_forced=force
            )
        )

    count = run_with_store(StoreSettings(**settings), run)
    click.echo(f"{counted(count, 'move')} canceled")


@click.command("add-shard")
@click.argument("shard", required=False, default="")
@store_options
@members_option("Number of nodes of the shard [default: as in the first shard].")
@durable_option("as in the first shard")
def add_shard_command(
    shard: str, members: int | None, durable: int | None, **settings: str
) -> None:
    """Add a shard without slots.

    SHARD is its name [default: s and the next number]. Start its nodes then, with `cluster-shard`
    auto or this name, and move slots to it with `millstream cluster rebalance` or `move`.
    """
    if shard and not SHARD_NAME.fullmatch(shard):
        raise CliError(
            f"{shard} cannot be the name of a shard: take 1 to 32 small letters and digits"
        )
    name = run_with_store(
        StoreSettings(**settings), lambda store: add_shard(store, shard, members, durable)
    )
    click.echo(f"shard {name} has no slots yet")
