"""The `millstream` program leads to every command, and loads only its modules."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from millstream.__main__ import COMMANDS, main
from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.manifest import Manifest, store_manifest


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_in_the_help_exists_with_the_same_summary(name: str) -> None:
    listed = CliRunner().invoke(main, ["--help"])
    own = CliRunner().invoke(main, [name, "--help"])
    assert (listed.exit_code, own.exit_code) == (0, 0)
    words = COMMANDS[name][1].removesuffix(".").split()
    assert " ".join(words) in " ".join(listed.output.split())
    assert " ".join(words) in " ".join(own.output.split())


def test_an_unknown_command_is_refused() -> None:
    done = CliRunner().invoke(main, ["no-such-command"])
    assert done.exit_code == 2
    assert "no-such-command" in done.output


def test_a_misspelled_command_gets_a_suggestion() -> None:
    done = CliRunner().invoke(main, ["srve"])
    assert done.exit_code == 2
    assert "No such command 'srve'. Did you mean 'serve'?" in done.output


@pytest.mark.parametrize("name", ["top", "tail", "health"])
def test_a_command_without_its_libraries_names_the_extra(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [module for module in sys.modules if module.startswith("millstream.tools")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "redis", None)
    done = CliRunner().invoke(main, [name, "x"])
    assert done.exit_code == 1
    assert f"`millstream {name}` needs redis: pip install 'millstream[tools]'" in done.output


@pytest.mark.parametrize(
    ("module", "code", "shown"), [("click", -signal.SIGINT, ""), ("uvicorn", 1, "Aborted!")]
)
def test_ctrl_c_while_modules_are_loaded_shows_no_traceback(
    tmp_path: Path, module: str, code: int, shown: str
) -> None:
    """The module stands for any that the program or the command loads."""
    (tmp_path / f"{module}.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    done = subprocess.run(
        [sys.executable, "-m", "millstream", "dashboard"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr.strip()) == (code, shown)


def test_an_import_of_a_file_needs_no_client(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in [
        module
        for module in sys.modules
        if module.startswith(("millstream.tools", "millstream.server.moving", "millstream.remote"))
    ]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "redis", None)
    words = ["--dir", str(tmp_path / "data")]
    done = CliRunner().invoke(main, ["import", str(tmp_path / "no.rdb"), *words])
    assert done.exit_code == 1
    assert "no.rdb" in done.output
    done = CliRunner().invoke(main, ["import", "redis://127.0.0.1:1", *words])
    assert done.exit_code == 1
    assert "needs redis: pip install 'millstream[tools]'" in done.output


def completions(*words: str) -> set[str]:
    """The completions of bash for the last word of a command line."""
    environment = {
        "_MILLSTREAM_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["millstream", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = CliRunner().invoke(main, [], prog_name="millstream", env=environment)
    return {line.partition(",")[2] for line in done.output.splitlines()}


def test_a_shell_completes_commands_options_and_directives() -> None:
    assert completions("t") == {"top", "tail"}
    assert completions("top", "--s") == {"--sort", "--streams-max"}
    assert completions("top", "--sort", "l") == {"lag", "length"}
    assert {"--port", "--protected-mode"} <= completions("serve", "--p")


def test_bash_completes_directives_of_the_server() -> None:
    script = CliRunner().invoke(main, ["completion", "bash"], prog_name="millstream").output
    server = Path(sys.executable).with_name("millstream-server")
    question = f"""
complete() {{ :; }}
{script}
COMP_WORDS=({server} --save --repl-back) COMP_CWORD=2
_millstream_server_completion {server}
echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash"], input=question, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["--repl-backlog-size", "--repl-backlog-ttl"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    done = CliRunner().invoke(main, ["completion", shell], prog_name="millstream")
    assert done.exit_code == 0
    assert "_MILLSTREAM_COMPLETE" in done.output
    assert f"{shell}_complete" in done.output


def test_bash_accepts_the_script() -> None:
    script = CliRunner().invoke(main, ["completion", "bash"]).output
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


def loaded_after(*arguments: str) -> set[str]:
    """The modules in a new interpreter that was given these arguments for `millstream`."""
    program = (
        "import sys; from millstream.__main__ import main\n"
        f"try: main({[*arguments]!r})\n"
        "except SystemExit: print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_the_help_loads_no_package() -> None:
    packages = ("millstream.server", "millstream.commands", "millstream.storage")
    assert not [name for name in loaded_after("--help") if name.startswith(packages)]


def test_serving_loads_no_module_of_other_commands() -> None:
    loaded = loaded_after("serve", "--help")
    assert "millstream.server.main" in loaded
    assert not {"pyarrow", "pyspark", "rich"} & {name.split(".")[0] for name in loaded}


NOT_AT_START = {
    # Of the server: what only a command, a signal or a directive needs.
    "millstream.commands.later",
    "millstream.server.backup.answer",
    "millstream.server.backup.backup_feed",
    "millstream.server.backup.stream_copy",
    "millstream.server.cluster",
    "millstream.server.config.config_rewrite",
    "millstream.server.gateway",
    "millstream.server.metrics",
    "millstream.server.moving",
    "millstream.server.net.certificate_dates",
    "millstream.server.net.tls_contexts",
    "millstream.server.net.tls_handshake",
    "millstream.server.repair",
    "millstream.server.replication.announcement",
    "millstream.server.replication.frequent_effects",
    "millstream.server.replication.link",
    "millstream.server.replication.link_connection",
    "millstream.server.replication.link_protocol",
    "millstream.server.replication.receiver",
    "millstream.server.replication.redis_commands",
    "millstream.server.replication.redis_dump",
    "millstream.server.replication.redis_feed",
    "millstream.server.replication.redis_following",
    "millstream.server.replication.redis_opening",
    "millstream.server.replication.redis_spool",
    "millstream.server.replication.redis_stream",
    "millstream.server.replication.reload",
    "millstream.server.replication.replacement",
    "millstream.server.replication.rewinding",
    "millstream.storage.capture.capture",
    "millstream.storage.capture.small_loader",
    "millstream.storage.dump",
    "millstream.storage.files.damaged_base",
    "millstream.storage.files.recovery",
    "millstream.storage.files.snapshot_reader",
    "millstream.storage.files.snapshot_writer",
    # Libraries.
    "click",
    "ctypes",
    "dataclasses",
    "datetime",
    "difflib",
    "encodings.ascii",
    "encodings.idna",
    "json",
    "msgpack",
    "platform",
    "prometheus_client",
    "redis",
    "stringprep",
    "tempfile",
    "zstandard",
}


def test_an_empty_server_loads_only_what_it_needs(tmp_path: Path) -> None:
    program = f"""
import sys
from millstream.server.life import Server
from millstream.server.main import run

def report_ready(self):
    print(*sys.modules)
    self.stopping.set()

Server._report_ready = report_ready
sys.exit(run(None, ["--port", "0", "--dir", {str(tmp_path / "data")!r}]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    loaded = next(set(line.split()) for line in done.stdout.splitlines() if "asyncio" in line)
    assert "millstream.server.replication.role" in loaded
    assert not NOT_AT_START & loaded


@pytest.mark.parametrize(
    "words",
    [
        "-m millstream.server.main --help",
        "-m millstream.server.main --version",
        "-m millstream --help",
        "-m millstream serve --help",
        "-m millstream check --help",
        "-m millstream inspect --help",
        "-m millstream inspect DIR",
        "-m millstream inspect DIR --json",
        "-m millstream check DIR",
        "-m millstream check DIR --json",
    ],
)
def test_a_reader_that_has_seen_enough_gets_no_traceback(words: str, tmp_path: Path) -> None:
    disk = SystemDisk(tmp_path)
    store_manifest(disk, Manifest(None, (), 1, bytes(16)))
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, *words.replace("DIR", str(tmp_path)).split()],
            stdout=writer, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert done.stderr == ""
