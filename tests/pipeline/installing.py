"""Installations of millstream and PySpark other than the one that the tests run in, made without
network and without compiling anything a second time."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("server", "storage", "commands", "pipeline", "cdc", "client", "tools", "dashboard")
SOURCES = ("src", *PACKAGES, "pyproject.toml", "setup.py", "README.md", "LICENSE")


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> None:
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:]


def oldest_pyspark() -> Path:
    """The folder of the oldest PySpark that is supported, for PYTHONPATH. `make test` has put it
    there; otherwise it is fetched now."""
    run(sys.executable, ROOT / "scripts" / "install.py", "oldest-spark")
    return Path(sys.prefix) / "oldest-spark"


def shared_wheel(folder: Path) -> Path:
    """The wheel of this tree, made in `folder` by the first process that asks for it."""
    made, unfinished = folder / "wheel", folder / "unfinished-wheel"
    with open(folder / "wheel.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            _make_wheel(unfinished)
            unfinished.rename(made)
    (wheel,) = made.glob("*.whl")
    return wheel


def _make_wheel(folder: Path) -> None:
    """The wheel of this tree, with the modules as they are compiled in place: there is no compiler
    for what is missing. It is not compressed, because it is unpacked at once."""
    tree = folder / "tree"
    tree.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            without = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, tree / name, symlinks=True, ignore=without)
        else:
            shutil.copy2(source, tree / name)
    _hand_over_compiled(tree)
    settings = folder / "settings.cfg"
    settings.write_text("[bdist_wheel]\ncompression = stored\n")
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder]
    wheel = [sys.executable, "-m", "pip", "wheel", *options, "."]
    run(*wheel, cwd=tree, CC="false", DIST_EXTRA_CONFIG=str(settings))


def _hand_over_compiled(tree: Path) -> None:
    """Puts the compiled modules where setuptools looks for modules that are up to date."""
    built = tree / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    common = tree / "src" / "millstream"
    modules = {module: module.relative_to(common) for module in common.glob("*.so")}
    for package in PACKAGES:
        modules |= {module: module.relative_to(tree) for module in (tree / package).rglob("*.so")}
    for module, name in modules.items():
        place = built / "millstream" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        module.rename(place)


def install(wheel: Path, extra: str, venv: Path) -> None:
    """A virtualenv with the wheel, and with the installed packages that the wheel and its extra
    require, and no others. A module is compiled to bytecode when it is imported: few are."""
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    pip = [sys.executable, "-m", "pip", "--python", venv / "bin" / "python"]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--no-compile", wheel)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(venv)}))
    (information,) = packages.glob("millstream-*.dist-info")
    for required in _required(Distribution.at(information), {extra}, set()):
        for name in {file.parts[0] for file in required.files or ()} - {"..", "__pycache__"}:
            (packages / name).symlink_to(Path(str(required.locate_file(name))))
    if (packages / "pyspark").exists():
        _as_published(packages / "pyspark")


def _as_published(pyspark: Path) -> None:
    """PySpark with the archives that scripts/install.py has replaced."""
    library = Path("python", "lib")
    source = pyspark.resolve()
    pyspark.unlink()
    for folder in (Path(), library.parent, library):
        (pyspark / folder).mkdir()
        for file in (source / folder).iterdir():
            if file.name not in library.parts:
                (pyspark / folder / file.name).symlink_to(file)
    for archive in (pyspark / library).glob("*.published"):
        replaced = archive.with_name(archive.name.removesuffix(".published"))
        replaced.unlink()
        archive.rename(replaced)


def _required(wanted: Distribution, extras: set[str], seen: set[str]) -> Iterator[Distribution]:
    """The requirements of a package, and theirs, each once."""
    for text in wanted.requires or ():
        requirement = Requirement(text)
        if not _applies(requirement, extras):
            continue
        found = distribution(requirement.name)
        assert requirement.specifier.contains(found.version), text
        name = canonicalize_name(requirement.name)
        if name not in seen:
            seen.add(name)
            yield found
            yield from _required(found, requirement.extras, seen)


def _applies(requirement: Requirement, extras: set[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))
