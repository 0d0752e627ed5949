"""The process from which Spark forks its Python workers: `python -m` with this module's name.

Spark's own daemon imports only pyspark, from an archive, and each worker imports and compiles the
rest. Here, everything is imported once, before the first fork, and pyspark from its folder if the
archive is a part of the same installation.
"""

from __future__ import annotations

import gc
import sys
from importlib.machinery import PathFinder
from pathlib import Path

GARBAGE_THRESHOLD = 100_000


def without_archives(paths: list[str]) -> list[str]:
    """The search path without pyspark's archives, if there is a folder with the same contents."""
    plain = [path for path in paths if not path.endswith(".zip")]
    found = PathFinder.find_spec("pyspark", plain)
    if found is None or found.origin is None or PathFinder.find_spec("py4j", plain) is None:
        return paths
    folder = Path(found.origin).resolve().parent
    return [
        path
        for path in paths
        if not path.endswith(".zip") or folder not in Path(path).resolve().parents
    ]


def main() -> None:
    """Serve Spark until it ends this process."""
    sys.path[:] = without_archives(sys.path)
    import pyspark.worker  # noqa: F401
    from pyspark.daemon import manager

    import millstream.cdc.applier.apply_worker  # noqa: F401

    # Workers collect garbage after each task. Imported objects are never garbage, and the up to
    # 20,000 changes of a worker need not be traversed after every 700 new objects.
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD)
    manager()


if __name__ == "__main__":
    main()
