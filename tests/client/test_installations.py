"""The client with the oldest redis-py, without any warning, and installed from a wheel with only
its own requirements."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.client.conftest import url_of
from tests.pipeline.installing import ROOT, install
from tests.pipeline.installing import run as run_command
from tests.support.server import Server

ESSENTIALS = Path(__file__).with_name("essentials.py")


def oldest_redis() -> Path:
    """The folder of the oldest redis-py that is supported, for PYTHONPATH."""
    run_command(sys.executable, ROOT / "scripts" / "install.py", "oldest-redis")
    return Path(sys.prefix) / "oldest-redis"


def run(server: Server, python: str | Path, folder: Path, **environment: str) -> list[str]:
    """Run the essentials, with every warning as an error; the versions that were used."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    done = subprocess.run(
        [python, "-X", "dev", "-W", "error", ESSENTIALS, url_of(server)],
        cwd=folder,
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-5000:]
    return done.stdout.split()


def test_the_essentials_cause_no_warning(server: Server, tmp_path: Path) -> None:
    version, _ = run(server, sys.executable, tmp_path)
    assert int(version.split(".")[0]) >= 8


def test_the_essentials_work_with_the_oldest_redis_py(server: Server, tmp_path: Path) -> None:
    version, _ = run(server, sys.executable, tmp_path, PYTHONPATH=str(oldest_redis()))
    assert version.startswith("5.0.")


@pytest.mark.timeout(300)
def test_the_most_important_tests_pass_with_the_oldest_redis_py() -> None:
    tests = [f"tests/client/test_{name}.py" for name in ("defects", "exactly_once", "asyncio")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(oldest_redis())},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.mark.timeout(300)
def test_a_wheel_installs_the_client_with_its_types(
    server: Server, wheel: Path, tmp_path: Path
) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"millstream/py.typed", "millstream/client/aio/stream.py"} <= set(names)
    venv = tmp_path / "venv"
    install(wheel, "client", venv)
    _, package = run(server, venv / "bin" / "python", tmp_path)
    assert Path(package).is_relative_to(venv)
