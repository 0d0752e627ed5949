"""Compiles the modules that setup.py finds, in place, and only those whose sources changed.

    .venv/bin/python scripts/compile.py                    all
    .venv/bin/python scripts/compile.py storage.blocks.block ...  these

Plain `build_ext --inplace` compiles all modules in a separate folder and copies them; this script
checks the modules in place. CFLAGS, when set, replaces the flags in setup.py: a build with a
sanitizer is not optimised. If ccache is installed and CC does not name another compiler, ccache is
used.
"""

import fcntl
import logging
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

from distutils.core import run_setup  # isort: skip - setuptools provides it

ROOT = Path(__file__).resolve().parent.parent
# Operations on storage that only tests use. It is the largest module, and not optimised.
FOR_TESTS = "tests.support.storage_access"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


def load(names: list[str]) -> Distribution:
    """The project as setup.py describes it, with only the modules in `names`, if any."""
    distribution = run_setup("setup.py", stop_after="config")
    logging.getLogger().setLevel(logging.WARNING)  # setup.py sets INFO: a line per copied file
    distribution.package_dir["tests"] = "tests"
    known = {extension.name: extension for extension in distribution.ext_modules}
    for_tests = Extension(
        FOR_TESTS,
        [FOR_TESTS.replace(".", "/") + ".pyx"],
        include_dirs=["src"],
        extra_compile_args=["-g0", "-O0"],
    )
    known[FOR_TESTS] = for_tests
    wanted = [
        name if name in known else f"millstream.{name.removeprefix('millstream.')}"
        for name in names or known
    ]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        sys.exit(f"not a compiled module: {' '.join(unknown)}")
    distribution.ext_modules = [known[name] for name in wanted]
    return distribution


def remove_orphans(folders: Iterable[str]) -> None:
    """Remove modules without a .pyx, because Python prefers them to a .py of the same name."""
    for folder in folders:
        for module in Path(folder).rglob(f"*{SUFFIX}"):
            source = module.with_name(module.name.removesuffix(SUFFIX) + ".pyx")
            if not source.exists():
                module.unlink()


def use_ccache() -> None:
    if shutil.which("ccache"):
        os.environ.setdefault("CC", f"ccache {sysconfig.get_config_var('CC').split()[0]}")


def stale(extension: Extension) -> bool:
    source = Path(extension.sources[0])
    module = source.with_suffix(SUFFIX)
    changed_s = max(path.stat().st_mtime for path in (source, ROOT / "setup.py"))
    return not module.exists() or module.stat().st_mtime < changed_s


def compile_stale(distribution: Distribution) -> None:
    jobs = os.cpu_count() or 1
    modules = distribution.ext_modules
    translated = distribution.cmdclass["build_ext"].translate(modules, jobs)
    # The largest ones first: otherwise a core waits at the end, while the other compiles one.
    largest = sorted(translated, key=lambda extension: -Path(extension.sources[0]).stat().st_size)
    distribution.ext_modules = [extension for extension in largest if stale(extension)]
    for extension in distribution.ext_modules:
        print(f"compiling {extension.name}", flush=True)
        if "CFLAGS" in os.environ:
            extension.extra_compile_args = []
    command = build_ext(distribution)
    command.inplace = command.force = True
    command.parallel = jobs
    command.ensure_finalized()
    command.run()


def main() -> None:
    os.chdir(ROOT)
    use_ccache()
    Path("build").mkdir(exist_ok=True)
    with open("build/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # concurrent builds would write the same files
        distribution = load(sys.argv[1:])
        remove_orphans(distribution.package_dir.values())
        compile_stale(distribution)


if __name__ == "__main__":
    main()
