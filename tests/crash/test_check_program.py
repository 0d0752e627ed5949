"""`millstream check` and `millstream inspect` as programs, with real servers and directories."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support import data_directory
from tests.support.resp import Error
from tests.support.server import Server

from millstream.__main__ import main

NewServer = Callable[..., Server]
ENTRIES = 20


def millstream(*arguments: str | Path, wrapper: tuple[str, ...] = ()) -> tuple[int, str, str]:
    """(exit code, standard output, standard error)."""
    done = subprocess.run(
        [*wrapper, sys.executable, "-m", "millstream", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def typed(command: str) -> tuple[int, str]:
    """As millstream, for a line that a shell gets."""
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout


@pytest.fixture
def killed(new_server: NewServer) -> Server:
    """A server that was killed: a base, and a journal of one frame an entry."""
    server = new_server().start()
    with server.client() as client:
        for number in range(1, ENTRIES + 1):
            client.call("XADD", "s", f"{number}-1", "f", f"value {number}")
        client.call("SAVE")
        for number in range(ENTRIES + 1, 2 * ENTRIES + 1):
            client.call("XADD", "s", f"{number}-1", "f", f"value {number}")
    server.kill()
    return server


def damage_journal(server: Server) -> int:
    """Flip a byte about the middle of the journal; the frame's offset."""
    path = data_directory.last_journal(server.directory)
    at = path.stat().st_size // 2
    data_directory.flip(path, at)
    return at


def entries_in(server: Server) -> list[object]:
    with server.client() as client:
        reply = client.call("TRANGE", "s", "-", "+")
    assert isinstance(reply, list)
    return reply


def test_the_files_of_a_killed_server_are_whole(killed: Server) -> None:
    code, output, complained = millstream("check", killed.directory)
    assert (code, complained) == (0, "")
    assert output.splitlines()[-1] == f"{killed.directory}: whole"


def test_a_refused_start_names_the_command_that_repairs(killed: Server) -> None:
    damage_journal(killed)
    with pytest.raises(AssertionError, match="did not start"):
        killed.start()
    (command,) = re.findall(r"see what can be recovered: (.*)$", killed.log, re.MULTILINE)
    code, output = typed(command)
    assert code == 1
    journal = data_directory.last_journal(killed.directory).name
    assert f"{journal} " in output
    assert "at offset" in output
    assert "a repair loses" in output
    (command,) = re.findall(r"^(.*) recovers the rest$", output, re.MULTILINE)
    code, output = typed(command)
    assert code == 0, output
    killed.start()
    entries = entries_in(killed)
    written = [[b"%d.1" % n, b"f", b"value %d" % n] for n in range(1, 2 * ENTRIES + 1)]
    (lost,) = [entry for entry in written if entry not in entries]  # one frame's
    expected = [entry for entry in written if entry != lost]
    assert entries == expected
    assert lost in written[ENTRIES:]
    (folder,) = killed.directory.glob("damaged-*")
    assert (folder / journal).exists()
    killed.restart("SIGKILL")
    assert entries_in(killed) == expected


def test_json_has_the_fields_that_a_script_needs(killed: Server) -> None:
    damage_journal(killed)
    code, output, _ = millstream("check", "--json", killed.directory)
    report: dict[str, Any] = json.loads(output)
    assert (code, report["verdict"]) == (1, "damaged")
    (wrong,) = [file for file in report["files"] if file["places"]]
    assert wrong["name"] == data_directory.last_journal(killed.directory).name
    assert isinstance(wrong["places"][0]["offset"], int)
    assert wrong["loses"]


def test_a_directory_in_use_is_not_checked_but_inspected(new_server: NewServer) -> None:
    server = new_server().start()
    with server.client() as client:
        client.call("XADD", "s", "1-1", "f", "v")
        client.call("XGROUP", "CREATE", "s", "g", "0")
        for option in ((), ("--repair",)):
            code, output, complained = millstream("check", server.directory, *option)
            assert (code, output) == (2, "")
            assert "is used by a server" in complained
        code, output, _ = millstream("inspect", "--json", server.directory)
        assert code == 0
        (row,) = json.loads(output)["rows"]
        assert (row["key"], row["entries"], row["groups"], row["last_id"]) == ("s", 1, 1, "1-1")
        client.call("XADD", "s", "2-1", "f", "v")  # the server has noticed nothing
        client.call("XADD", "\x1b]0;title\x07\x1b[2J\n", "1-1", "f", "v")
    code, output, _ = millstream("inspect", server.directory)
    assert [line.split()[:4] for line in output.splitlines() if " stream " in line] == [
        ["0", r"\x1b]0;title\x07\x1b[2J\n", "stream", "1"],
        ["0", "s", "stream", "2"],
    ]


def contents(directory: Path) -> dict[str, bytes | None]:
    """The contents of a directory; of folders the names."""
    return {p.name: p.read_bytes() if p.is_file() else None for p in directory.iterdir()}


def test_an_impossible_check_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes/cluster.json").touch()
    for name, words in (
        ("missing", "No such file or directory"),
        ("file", "Not a directory"),
        ("empty", "holds no data of a server\n"),
        ("nodes", f"it is a directory of nodes; name one of them, such as {tmp_path}/nodes/0001"),
    ):
        for command in ("check", "inspect"):
            code, output, complained = millstream(command, tmp_path / name)
            assert (code, output) == (2, "")
            assert words in complained
            assert len(complained.splitlines()) == 1
    assert not (tmp_path / "missing").exists()


def test_a_read_only_directory_is_checked_and_not_repaired(killed: Server) -> None:
    code, _, _ = millstream("check", killed.directory)
    assert code == 0
    damage_journal(killed)
    before = contents(killed.directory)
    killed.directory.chmod(0o555)
    try:
        wrapper = tuple(data_directory.without_privileges())
        code, output, _ = millstream("check", killed.directory, wrapper=wrapper)
        assert (code, output.splitlines()[-1]) == (1, f"{killed.directory}: damaged")
        code, output, _ = millstream("check", "--repair", killed.directory, wrapper=wrapper)
        assert (code, output.splitlines()[-1]) == (1, f"{killed.directory}: damaged")
        assert "the repair could not be done: Permission denied" in output
    finally:
        killed.directory.chmod(0o755)
    assert contents(killed.directory) == before


def test_a_repair_without_disk_space_leaves_the_data_unchanged(killed: Server) -> None:
    """No file may grow: the error is another one, the way to the sentence the same."""
    limit = shutil.which("prlimit")
    assert limit, "prlimit is missing: apt-get install util-linux"
    damage_journal(killed)
    before = contents(killed.directory)
    code, output, _ = millstream(
        "check", "--repair", killed.directory, wrapper=(limit, "--fsize=8")
    )
    assert (code, output.splitlines()[-1]) == (1, f"{killed.directory}: damaged")
    assert "the repair could not be done: File too large" in output
    assert "--repair" not in output
    assert contents(killed.directory) == before


# ---------------------------------------------------------------- after a mistake

ROOT = Path(__file__).resolve().parents[2]
MISTAKES = {  # by the beginning of the option that the page has for it
    "--before FLUSHALL": ["FLUSHALL"],
    "--before FLUSHDB": ["FLUSHDB"],
    "--before DEL": ["UNLINK orders"],
    "--before EVICT": ["XTRIM orders MAXLEN 0"],
    "--before POLICY": ["TPOLICY orders MAXLEN 1 EXACT"],
    "--before XDEL": ["XDEL orders 1-1", "XDEL orders 2-1", "XDEL orders 3-1"],
    "--before SWAPDB": ["SWAPDB 0 1"],
}


def within(*words: str | Path) -> str:
    """The output of millstream in this process."""
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


def orders_in(directory: Path) -> int:
    output = within("inspect", directory, "--json", "--key", "orders")
    return sum(row["entries"] for row in json.loads(output)["rows"] if row["database"] == 0)


def test_the_page_restores_the_data_before_a_mistake(new_server: NewServer, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operating.md").read_text()
    section = page.split("## After a mistake")[1].split("\n## ")[0]
    hold_off, restoring, *_ = re.findall(r"```\n(.*?)\n```", section, re.DOTALL)
    options = re.findall(r"`(--before [^`]+)`", section.split("|---|---|")[1])
    assert [option for option in options if not option.startswith(tuple(MISTAKES))] == []
    assert len(options) == len(MISTAKES)
    server = new_server("data", {"save": "3600 1"}).start()
    with server.client() as client:
        for number, (option, mistake) in enumerate(zip(options, MISTAKES.values(), strict=True)):
            client.call("DEL", "orders")
            for entry in range(1, ENTRIES + 1):
                client.call("XADD", "orders", f"{entry}-1", "f", f"value {entry}")
            for line in mistake:
                assert not isinstance(client.call(*line.split()), Error)
            client.call("SET", "later", str(number))
            if number == 0:
                hold_off = hold_off.replace("-p 6455", f"-p {server.port}")
                assert typed(hold_off) == (0, "OK\n")
            restored = tmp_path / f"restored-{number}"
            typed_here = restoring.replace("--before FLUSHALL", option)
            typed_here = typed_here.replace("check data", f"check {server.directory} --no-load")
            words = typed_here.replace("--to restored", f"--to {restored}").split()[1:]
            output = within(*words)
            assert f"left out: {len(mistake) + 1} frames with 0 added entries" in output
            assert orders_in(restored) == ENTRIES
    assert orders_in(server.directory) == 0
    with new_server("restored-0").start().client() as client:
        assert client.call("XLEN", "orders") == ENTRIES
