"""Installs the requirements in pyproject.toml into the virtualenv; run it with the virtualenv's
Python.

    .venv/bin/python scripts/install.py compiler    what compiles the modules: Cython and setuptools
    .venv/bin/python scripts/install.py package    millstream itself, editable, with what it runs on
    .venv/bin/python scripts/install.py test       the requirements of an extra: test, lint, bench
    .venv/bin/python scripts/install.py oldest-spark    the oldest PySpark, into .venv/oldest-spark
    .venv/bin/python scripts/install.py package test lint    several of them, in one run of pip

scripts/compile.py compiles the modules. The virtualenv records each request, and repeating a
request does nothing.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


# PySpark is published as source only. Compressing its 470 MB into a wheel, which pip unpacks at
# once, takes 15 seconds. setuptools reads this file when it builds a wheel.
WHEELS = "[bdist_wheel]\ncompression = stored\n"

PUBLISHED = ".published"  # an archive of PySpark that Spark no longer finds


def pip(*arguments: str, **environment: str) -> None:
    """Install without compiling to bytecode: Python compiles modules on import, and only a small
    part of the tests' requirements is imported."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
    command += ["--quiet", "--no-compile", *arguments]
    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as settings:
        settings.write(WHEELS)
        settings.flush()
        environment |= {"DIST_EXTRA_CONFIG": settings.name}
        subprocess.run(command, cwd=ROOT, check=True, env=os.environ | environment)


def say(what: str) -> None:
    print(what, flush=True)


def install_package(requirements: list[str]) -> None:
    """Install millstream, without its compiled modules, and the other requirements in the same
    run."""
    pip("--no-build-isolation", "--editable", ".", *requirements, MILLSTREAM_UNCOMPILED="1")


def install_beside(folder: Path, requirements: list[str]) -> None:
    """Install into a folder for PYTHONPATH, which exists only when it is complete; the virtualenv
    already has the dependencies."""
    unfinished = folder.with_suffix(".tmp")
    for left in (folder, unfinished):
        shutil.rmtree(left, ignore_errors=True)
    pip("--no-deps", "--target", str(unfinished), *requirements)
    unfinished.rename(folder)


def import_from_folder(packages: Path) -> None:
    """Let Spark's Python processes import PySpark from its folder.

    Spark starts many, with archives of the same modules first in the path. Python keeps bytecode
    only for folders, so each process would compile what it imports, and takes three times as long
    to start. An archive becomes a folder with a link, and is kept for the test of PySpark as it is
    published.
    """
    for name in ("pyspark", "py4j"):
        for archive in (packages / "pyspark" / "python" / "lib").glob(f"{name}*.zip"):
            if archive.is_file() and (packages / name).is_dir():
                archive.rename(archive.with_name(archive.name + PUBLISHED))
                archive.mkdir()
                (archive / name).symlink_to(Path("..", "..", "..", "..", name))


class Wanted:
    """The requirements of one name in pyproject.toml, and the record of those that were
    installed."""

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
        if one.name == "test":
            import_from_folder(Path(sysconfig.get_path("purelib")))
        elif one.name == "oldest-spark":
            import_from_folder(Path(sys.prefix) / one.name)
        one.note()


def main() -> None:
    with (Path(sys.prefix) / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        install(sys.argv[1:])


if __name__ == "__main__":
    main()
