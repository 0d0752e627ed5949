"""Puts into the virtualenv what pyproject.toml asks for; run by the virtualenv's own Python.

    .venv/bin/python scripts/install.py compiler    what compiles the modules: Cython and setuptools
    .venv/bin/python scripts/install.py package    millstream itself, editable, with what it runs on
    .venv/bin/python scripts/install.py test       the requirements of an extra: test, lint, bench
    .venv/bin/python scripts/install.py oldest-spark    the oldest PySpark, into .venv/oldest-spark
    .venv/bin/python scripts/install.py package test lint    several of them, in one run of pip

The modules are compiled by scripts/compile.py. What was asked for is noted in the virtualenv, and
the same request a second time does nothing.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def pip(*arguments: str, **environment: str) -> None:
    """Install without compiling to bytecode: Python does that for the modules that are imported, a
    small part of what the tests' requirements bring."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
    command += ["--quiet", "--no-compile", *arguments]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | environment)


def say(what: str) -> None:
    print(what, flush=True)


def install_package(requirements: list[str]) -> None:
    """Millstream itself, without its compiled modules, and in the same run what else is wanted."""
    pip("--no-build-isolation", "--editable", ".", *requirements, MILLSTREAM_UNCOMPILED="1")
    # Spark finds its sources by listing the folders in sys.path, where an editable install is not.
    (Path(sysconfig.get_path("purelib")) / "millstream-src.pth").write_text(f"{ROOT / 'src'}\n")


def install_beside(folder: Path, requirements: list[str]) -> None:
    """Into a folder for PYTHONPATH, which is there when it is complete; what these need is in the
    virtualenv already."""
    unfinished = folder.with_suffix(".tmp")
    for left in (folder, unfinished):
        shutil.rmtree(left, ignore_errors=True)
    pip("--no-deps", "--target", str(unfinished), *requirements)
    unfinished.rename(folder)


class Wanted:
    """What pyproject.toml says of one name, and the note of what was installed for it."""

    def __init__(self, name: str, pyproject: dict) -> None:
        project, build = pyproject["project"], pyproject["build-system"]
        groups = pyproject["dependency-groups"]
        lists = groups | project["optional-dependencies"] | {"compiler": build["requires"]}
        self.name = name
        self.is_beside = name in groups
        self.requirements: list[str] = lists.get(name, [])
        self._request = repr([project, build] if name == "package" else self.requirements)
        self._note = Path(sys.prefix) / f"installed-{name}"

    def is_installed(self) -> bool:
        return self._note.exists() and self._note.read_text() == self._request

    def note(self) -> None:
        self._note.write_text(self._request)


def install(names: list[str]) -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [Wanted(name, pyproject) for name in names]
    missing = [one for one in wanted if not one.is_installed()]
    if missing:
        say(f"Installing {', '.join(one.name for one in missing)}")
    together = [one for one in missing if not one.is_beside]
    requirements = [text for one in together for text in one.requirements]
    if any(one.name == "package" for one in together):
        install_package(requirements)
    elif requirements:
        pip(*requirements)
    for one in missing:
        if one.is_beside:
            install_beside(Path(sys.prefix) / one.name, one.requirements)
    for one in wanted:
        one.note()


def main() -> None:
    with (Path(sys.prefix) / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        install(sys.argv[1:])


if __name__ == "__main__":
    main()
