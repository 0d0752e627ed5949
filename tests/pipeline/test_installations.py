"""The ways in which millstream and Spark meet: through Spark Connect, with the oldest PySpark, and
installed from a wheel with only its requirements. Each time one program does all the essentials."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.direct import url
from tests.pipeline.essentials import __file__ as ESSENTIALS
from tests.pipeline.installing import install, oldest_pyspark
from tests.support.client import RawClient, as_bytes, as_list
from tests.support.resp import Simple
from tests.support.server import Server

DEADLINE_S = 570  # only a program that hangs takes as long

pytestmark = [
    pytest.mark.timeout(900),
]


@pytest.fixture
def filled(durable_server: Server) -> Server:
    """The entries that the program expects, in the server and in its snapshot."""
    with durable_server.client() as client:
        client.pipeline(
            [("XADD", f"before:{n % 3}", f"{1000 + n}-0", "n", str(n)) for n in range(600)]
        )
        assert client.call("SAVE") == Simple("OK")
    return durable_server


def essentials(
    server: Server, folder: Path, environment: dict[str, str], *arguments: str
) -> dict[str, Any]:
    """The output of the program, which runs outside of the source tree."""
    words = [url(server), str(server.directory), str(folder / "checkpoint"), *arguments]
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    done = subprocess.run(
        ["python3", ESSENTIALS, *words],
        env=kept | {"HOME": str(folder)} | environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def path_with(python: Path) -> dict[str, str]:
    """The environment after the `activate` of a virtualenv."""
    return {"PATH": os.pathsep.join([str(python.parent), os.environ["PATH"]])}


FEW = [n for n in range(30) if n % 3 < 2]


def check(seen: dict[str, Any], client: RawClient) -> None:
    """Check that the program has seen the expected entries."""
    columns = "struct<key:string,id:string,ts:timestamp,fields:map<string,string>>"
    assert seen["scan"] == [columns, "before:1", "1007-0", {"n": "7"}, FEW, FEW]
    assert seen["register"] == {f"before:{number}": 200 for number in range(3)}
    check_writing(seen, client, 700)
    assert seen["stream"] == 3
    assert "did you mean 'startingOffsets'?" in seen["refusal"]


def check_writing(seen: dict[str, Any], client: RawClient, copied: int) -> None:
    """Check that every row was written once, and copied once."""
    assert seen["write"] == {"in:0": 167, "in:1": 167, "in:2": 166}
    entries = [
        as_list(as_list(entry)[1]) for entry in as_list(client.call("XRANGE", "out", "-", "+"))
    ]
    numbers = [int(as_bytes(fields[fields.index(b"n") + 1])) for fields in entries]
    assert sorted(numbers) == list(range(copied))


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def test_through_spark_connect(
    filled: Server, spark_environment: dict[str, str], tmp_path: Path
) -> None:
    seen = essentials(filled, tmp_path, _here(spark_environment), "--remote", "local[2]")
    assert seen["parts"]["session"] == "pyspark.sql.connect.session"
    with filled.client() as client:
        check(seen, client)


def test_with_the_oldest_pyspark(
    filled: Server, spark_environment: dict[str, str], tmp_path: Path
) -> None:
    found = {"PYTHONPATH": str(oldest_pyspark())}
    seen = essentials(filled, tmp_path, _here(spark_environment) | found)
    assert {minor(seen["parts"][place][0]) for place in ("driver", "worker")} == {"4.2"}
    with filled.client() as client:
        check(seen, client)


def test_a_wheel_installs_with_its_requirements(
    filled: Server, wheel: Path, spark_environment: dict[str, str], tmp_path: Path
) -> None:
    """Spark gets no settings: the virtualenv is the one in PATH, as after its `activate`. Each
    Python process of PySpark as published takes a second, so the pass is brief."""
    venv = tmp_path / "venv"
    install(wheel, "spark", venv)
    java = {name: text for name, text in spark_environment.items() if name.startswith("JAVA")}
    seen = essentials(filled, tmp_path, path_with(venv / "bin" / "python") | java, "--brief")
    for place in ("driver", "worker"):
        version, millstream = seen["parts"][place]
        assert minor(version) == "4.3"
        assert Path(millstream).is_relative_to(venv)
    assert seen["scan"] == [FEW]
    with filled.client() as client:
        check_writing(seen, client, 500)
    assert seen["stream"] == 2


def _here(spark_environment: dict[str, str]) -> dict[str, str]:
    return path_with(Path(sys.executable)) | spark_environment
