# Generated from client/aio/command_calls.py by scripts/client_for_threads.py: change it there.
"""Single commands of a client: repeats, and errors of this package."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from millstream.client import redis_py
from millstream.client.core.reads_and_waits import block_s, is_read
from millstream.client.core.repeating import LIMIT_TRIES, ReadRepeats, is_too_long
from millstream.client.core.words import check_length, text
from millstream.client.errors import Sealed, refusal

if TYPE_CHECKING:
    from millstream.client.core.steps import Command, R


def execute(client: Any, send: Any, words: Sequence[Any], options: dict[str, Any]) -> Any:
    """Send a command with `send`, which is redis-py's. A read is repeated after a broken
    connection."""
    if wait_s := block_s(words):
        options["wait_s"] = wait_s
    repeats = ReadRepeats(is_read(words))
    while True:
        try:
            return send(*words, **options)
        except (RedisConnectionError, ResponseError) as error:
            if is_too_long(error, words):
                _check_length(client, words)
            pause_s = repeats.pause_s(error)
            if pause_s is None:
                raise
        time.sleep(pause_s)


def _check_length(client: Any, words: Sequence[Any]) -> None:
    for _ in range(LIMIT_TRIES):
        try:
            limits = client.config_get("proto-max-bulk-len")
        except RedisError:  # it may not be allowed
            continue
        check_length(words, limits)
        return


def ask(client: Any, command: Command[R]) -> R:
    """The reply to a command, as the command reads it."""
    try:
        options = {"wait_s": command.wait_s} if command.wait_s else {}
        return command.read(client.execute_command(*command.words, **options))
    except ResponseError as error:
        refused = refusal(error, command.words, redis_py.address(client))
        if isinstance(refused, Sealed):
            _name_children(client, refused, command.words[1])
        raise refused from None


def _name_children(client: Any, sealed: Sealed, key: Any) -> None:
    with suppress(RedisError):
        info = client.tinfo(key)
        if info is not None:
            sealed.children = list(map(text, info["children"]))
