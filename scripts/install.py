"""Puts into the virtualenv what pyproject.toml asks for; run by the virtualenv's own Python.

    .venv/bin/python scripts/install.py package    millstream itself, editable, with what it runs on
    .venv/bin/python scripts/install.py test       the requirements of an extra: test, lint, bench
    .venv/bin/python scripts/install.py oldest-spark    the oldest PySpark, into .venv/oldest-spark

Cython and setuptools live in the virtualenv too, so that a changed source is compiled again
without network and without a build environment made for the occasion. What was asked for is
noted in the virtualenv, and the same request a second time does nothing.
"""

import ast
import fcntl
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def pip(*arguments: str) -> None:
    """Install without compiling to bytecode: Python does that for the modules that are imported, a
    small part of what the tests' requirements bring."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
    subprocess.run([*command, "--quiet", "--no-compile", *arguments], cwd=ROOT, check=True)


def say(what: str) -> None:
    print(what, flush=True)


def install_package(build_requirements: list[str]) -> None:
    say("Fetching the compiler's Python packages")
    pip(*build_requirements)
    say("Installing millstream and compiling its modules: a few minutes, silently")
    pip("--no-build-isolation", "--editable", ".")
    # Spark finds its sources by listing the folders in sys.path, where an editable install is not.
    (Path(sysconfig.get_path("purelib")) / "millstream-src.pth").write_text(f"{ROOT / 'src'}\n")


def only_requirements_changed(noted: str, wanted: list[dict]) -> bool:
    """Whether what was installed differs from what is wanted in its requirements alone."""

    def without_requirements(project: dict, build: dict) -> list[dict]:
        left_out = ("dependencies", "optional-dependencies")
        return [{name: project[name] for name in project if name not in left_out}, build]

    try:
        before = ast.literal_eval(noted)
    except (SyntaxError, ValueError):
        return False
    return without_requirements(*before) == without_requirements(*wanted)


def install_beside(folder: Path, requirements: list[str]) -> None:
    """Into a folder for PYTHONPATH, which is there when it is complete; what these need is in the
    virtualenv already."""
    say(f"Fetching {', '.join(requirements)} into {folder.relative_to(ROOT)}")
    unfinished = folder.with_suffix(".tmp")
    for left in (folder, unfinished):
        shutil.rmtree(left, ignore_errors=True)
    pip("--no-deps", "--target", str(unfinished), *requirements)
    unfinished.rename(folder)


def install(what: str) -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, build = pyproject["project"], pyproject["build-system"]
    groups = pyproject["dependency-groups"]
    lists = groups | project["optional-dependencies"]
    wanted = [project, build] if what == "package" else lists[what]
    note = Path(sys.prefix) / f"installed-{what}"
    noted = note.read_text() if note.exists() else ""
    if noted != repr(wanted):
        if what == "package" and only_requirements_changed(noted, wanted):
            pip(*project["dependencies"])  # the modules are compiled already
        elif what == "package":
            install_package(build["requires"])
        elif what in groups:
            install_beside(Path(sys.prefix) / what, wanted)
        else:
            pip(*wanted)
    note.write_text(repr(wanted))


def main() -> None:
    with (Path(sys.prefix) / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        install(sys.argv[1])


if __name__ == "__main__":
    main()
