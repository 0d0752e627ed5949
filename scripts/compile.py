"""Compiles the modules that pyproject.toml lists, in place, and only those whose sources changed.

    .venv/bin/python scripts/compile.py                    all
    .venv/bin/python scripts/compile.py storage.block ...  these

Plain `build_ext --inplace` compiles in a folder of its own and copies, which repeats the work that
the editable install has done; this one looks at what lies in place. CFLAGS, when set, replaces the
flags in pyproject.toml, so a build with a sanitizer is not optimised behind its back.
"""

import fcntl
import os
import sys
import sysconfig
import warnings
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent.parent


def load(names: list[str]) -> Distribution:
    """The project as pyproject.toml describes it, with only the modules in `names`, if any."""
    warnings.filterwarnings("ignore", module="setuptools")  # "ext-modules are experimental"
    distribution = Distribution()
    distribution.parse_config_files()
    known = {extension.name: extension for extension in distribution.ext_modules}
    wanted = [f"millstream.{name.removeprefix('millstream.')}" for name in names] or list(known)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        sys.exit(f"not among the ext-modules of pyproject.toml: {' '.join(unknown)}")
    distribution.ext_modules = [known[name] for name in wanted]
    sources = [source for extension in distribution.ext_modules for source in extension.sources]
    absent = [source for source in sources if not Path(source).exists()]
    if absent:
        sys.exit(f"listed in pyproject.toml, but not there: {' '.join(absent)}")
    return distribution


def stale(extension: Extension) -> bool:
    source = Path(extension.sources[0])
    module = source.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))
    return not module.exists() or module.stat().st_mtime < source.stat().st_mtime


def compile_stale(distribution: Distribution) -> None:
    jobs = os.cpu_count() or 1
    modules = distribution.ext_modules
    translated = cythonize(modules, include_path=["src"], nthreads=jobs, quiet=True)
    distribution.ext_modules = [extension for extension in translated if stale(extension)]
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
    Path("build").mkdir(exist_ok=True)
    with open("build/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two builds at once would write the same files
        compile_stale(load(sys.argv[1:]))


if __name__ == "__main__":
    main()
