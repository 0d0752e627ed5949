"""The process that converts the RDB of a source: how it ends, and how it is ended."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.waiting import wait_until

from millstream.errors import DataError
from millstream.server.moving import converting
from millstream.server.moving.spool_conversion import SpoolConverter
from millstream.server.replication.redis_conversion import Conversion, ConversionError

Program = Callable[[str], None]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Replaces the process by a shell script."""

    def put(text: str) -> None:
        script = tmp_path / "script"
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
        monkeypatch.setattr(converting.sys, "executable", str(script))

    return put


def convert(converter: SpoolConverter, is_over: Callable[[], bool] = lambda: False) -> None:
    with tempfile.TemporaryFile() as file:
        converter.convert(
            Conversion(
                file.fileno(), 0, file.fileno(), b"", 1, 1, with_streams=False, is_over=is_over
            )
        )


def test_a_killed_process_is_a_temporary_failure(program: Program) -> None:
    program("kill -9 $$")
    with pytest.raises(DataError, match="got signal 9") as problem:
        convert(SpoolConverter(lambda: 0))
    assert not isinstance(problem.value, ConversionError)
    program("echo no such key type >&2; kill -9 $$")
    with pytest.raises(ConversionError, match="no such key type"):
        convert(SpoolConverter(lambda: 0))
    program("exit 1")
    with pytest.raises(ConversionError, match="its process has ended"):
        convert(SpoolConverter(lambda: 0))


def test_a_conversion_that_is_over_never_begins(program: Program, tmp_path: Path) -> None:
    program(f"touch {tmp_path}/began")
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DataError, match="was ended"):
        convert(SpoolConverter(lambda: 0), is_over=lambda: True)
    assert not (tmp_path / "began").exists()
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_conversion_that_runs_is_ended(program: Program, tmp_path: Path) -> None:
    program(f"touch {tmp_path}/began; exec sleep 600")
    converter, errors = SpoolConverter(lambda: 0), list[str]()

    def run() -> None:
        with pytest.raises(DataError) as problem:
            convert(converter)
        errors.append(str(problem.value))

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: (tmp_path / "began").exists(), what="the process")
    converter.stop()
    thread.join()
    assert errors == ["the conversion of the full sync was ended"]
