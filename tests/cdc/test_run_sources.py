"""`run` and the processes of its sources."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.cdc.feeding import config_text, parsed

from millstream.cdc.reader.run_sources import Child

KILLED = 'import sys; sys.stdout.write(\'{"reader": "reading"}\\n{"reader": "pau\')'


def test_a_report_half_written_by_a_killed_process_is_ignored() -> None:
    config = parsed(config_text(1, "postgresql://nowhere/dw"))
    child = Child(config, config.sources[0], lambda source, report: None)
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE) as process:
        child._listen(process)
    assert child.report == {"reader": "reading"}


def test_a_process_that_connects_to_a_silent_source_ends_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(30)
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/shop"
        text = config_text(1, "postgresql://nowhere/dw").replace("postgresql://nowhere/eu", url)
        file = tmp_path / "cdc.toml"
        file.write_text(text)
        module = "millstream.cdc.reader.source_process"
        command = [sys.executable, "-m", module, str(file), "shop:eu"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            try:
                connection, _ = silent.accept()
                with connection:
                    process.terminate()
                    assert process.wait(5) == 0
            finally:
                process.kill()
