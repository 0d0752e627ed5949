"""With `appendfsync always` no reply shows what an fdatasync has not yet made durable.

Seen from outside the process: strace records journal writes, fdatasyncs and socket writes while
single writers, pipelining writers, polling readers and blocked readers work at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support import syscalls
from tests.support.client import RawClient, as_list
from tests.support.resp import Error, Null
from tests.support.server import Server

APPENDS = 100
PIPELINE = 6


def entry_id(writer: int, number: int) -> str:
    return f"{syscalls.FIRST_MARKED_ID + writer * 100_000 + number}-1"


def entry_of(writer: int, number: int) -> tuple[str, str, str]:
    """An ID and a field. The journal has the ID in its own form, and the value as it is."""
    name = entry_id(writer, number)
    return name, "f", name


def append_one_by_one(client: RawClient) -> None:
    for number in range(APPENDS):
        assert client.call("XADD", "a", *entry_of(1, number)) != Null.BULK


def append_in_pipelines(client: RawClient) -> None:
    commands = [("XADD", "b", *entry_of(2, number)) for number in range(APPENDS)]
    for first in range(0, APPENDS, PIPELINE):
        replies = client.pipeline(commands[first : first + PIPELINE])
        assert not any(isinstance(reply, Error) for reply in replies), replies


def poll(client: RawClient) -> None:
    while True:
        newest = as_list(client.call("XREVRANGE", "a", "+", "-", "COUNT", "1"))
        if newest and as_list(newest[0])[0] == entry_id(1, APPENDS - 1).encode():
            return


def follow(client: RawClient) -> None:
    last_id = b"0"
    wanted = entry_id(2, APPENDS - 1).encode()
    while last_id != wanted:
        reply = client.call("XREAD", "BLOCK", "0", "STREAMS", "b", last_id)
        last_id = as_list(as_list(as_list(as_list(reply)[0])[1])[-1])[0]  # type: ignore[assignment]


def traced_load(server: Server, output: Path) -> syscalls.Verdict:
    """All four kinds of clients at once, then the verdict on the trace."""
    server.start()
    parts = [append_one_by_one, append_in_pipelines, poll, follow]
    clients = [server.client() for _ in parts]
    with ThreadPoolExecutor(len(parts)) as threads:
        running = [threads.submit(part, c) for part, c in zip(parts, clients, strict=True)]
        for part in running:
            part.result()
    server.kill()
    syscalls.wait_complete(output)
    return syscalls.judge(output, Path(os.path.realpath(server.directory)))


def test_no_reply_leaves_before_the_fdatasync_that_covers_it(
    new_server: Callable[..., Server], tmp_path: Path
) -> None:
    output = tmp_path / "trace"
    verdict = traced_load(new_server(wrapper=syscalls.wrapper(output)), output)
    assert verdict.too_early == []
    assert len(verdict.journaled) == 2 * APPENDS, "the journal's writes were not recognised"
    assert len(verdict.replied) == 2 * APPENDS, "the replies were not recognised"


def test_without_fsync_the_same_look_finds_early_replies(
    new_server: Callable[..., Server], tmp_path: Path
) -> None:
    """The test above can fail: with `appendfsync no` every reply is early."""
    output = tmp_path / "trace"
    server = new_server(directives={"appendfsync": "no"}, wrapper=syscalls.wrapper(output))
    verdict = traced_load(server, output)
    assert len(set(verdict.too_early)) == 2 * APPENDS
