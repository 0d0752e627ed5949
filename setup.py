"""Every folder with an __init__.py is a package, and every .pyx a compiled module. The package's
readme is README.md without relative links.

Everything else about the project is in pyproject.toml.
"""

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

PACKAGES = {
    "millstream": "src/millstream",
    "millstream.server": "server",
    "millstream.storage": "storage",
    "millstream.commands": "commands",
    "millstream.pipeline": "pipeline",
    "millstream.cdc": "cdc",
    "millstream.client": "client",
    "millstream.tools": "tools",
    "millstream.dashboard": "dashboard",
}

# These come after Python's own flags, which request -O3 and debugging symbols. Symbols take a third
# of the compile time. -fno-strict-aliasing: packed bytes are read through pointers of several
# widths.
FLAGS = ["-O3", "-g0", "-fno-plt", "-fno-strict-aliasing"]

# No compiled object is pickled and no compiled function is introspected: what these need is an
# eighth of the C code, and a tenth of the compiler's time.
DIRECTIVES = {"auto_pickle": False, "binding": False}


def packages() -> Iterator[str]:
    """Every folder with an __init__.py."""
    for package, folder in PACKAGES.items():
        pattern = "__init__.py" if folder.startswith("src/") else "**/__init__.py"
        for found in sorted(Path(folder).glob(pattern)):
            yield ".".join([package, *found.parent.relative_to(folder).parts])


def compiled_modules() -> Iterator[Extension]:
    for package, folder in PACKAGES.items():
        # src/millstream has links to the other folders; each folder is listed under its own name.
        pattern = "*.pyx" if folder.startswith("src/") else "**/*.pyx"
        for source in sorted(Path(folder).glob(pattern)):
            parts = source.relative_to(folder).with_suffix("").parts
            name = ".".join([package, *parts])
            yield Extension(
                name,
                [str(source)],
                include_dirs=["src"],  # a cimport across packages fails without it
                extra_compile_args=FLAGS,
            )


LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def published_readme(text: str, repository: str) -> str:
    """README.md for package indexes: relative links lead to the repository. Without its address
    only their words remain, and nothing of pictures."""

    def absolute(found: re.Match[str]) -> str:
        mark, words, target = found.groups()
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        if repository:
            kind = "raw" if mark else "blob"
            return f"{mark}[{words}]({repository}/{kind}/main/{target})"
        return "" if mark else words

    return LINK.sub(absolute, text)


def readme() -> str:
    pyproject = tomllib.loads(Path("pyproject.toml").read_text())
    repository = pyproject["tool"]["millstream"]["repository"].rstrip("/")
    return published_readme(Path("README.md").read_text(), repository)


class BuildWithAllCores(build_ext):
    """Translates and compiles in parallel, whichever build front end runs it."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    @staticmethod
    def translate(extensions: list[Extension], jobs: int) -> list[Extension]:
        """To C, whatever is not translated yet."""
        from Cython.Build import cythonize  # not needed to describe the project

        made: list[Extension] = cythonize(
            extensions,
            include_path=["src"],
            nthreads=jobs,
            quiet=True,
            compiler_directives=DIRECTIVES,
        )
        return made

    def run(self) -> None:
        translated = self.translate(self.extensions, self.parallel)
        for extension, of_c in zip(self.extensions, translated, strict=True):
            extension.sources = of_c.sources  # the rest was filled in by finalize_options
        super().run()


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    packages=list(packages()),
    package_dir={"": "src", **PACKAGES},
    # scripts/install.py leaves the modules to scripts/compile.py, which compiles what changed.
    ext_modules=[] if "MILLSTREAM_UNCOMPILED" in os.environ else list(compiled_modules()),
    cmdclass={"build_ext": BuildWithAllCores},
    # An editable install is the plain path of src/. The usual one adds code that runs at each start
    # of Python, and hides the sources from Spark, which lists the folders in sys.path.
    options={"editable_wheel": {"mode": "compat"}},
)
