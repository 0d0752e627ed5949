"""Runs redis-py's own tests of streams and of its cluster client against three nodes.

    .venv/bin/python scripts/redis_py_cluster_tests.py [PYTEST OPTIONS]

pip downloads the tests of the installed version into a temporary directory, where they run. Lists,
sets and hashes do not exist here, so only these tests are chosen.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import redis

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.shards import Shards  # noqa: E402

NODES = 3
RUNS = (
    # redis-py refuses the streams of one test itself, because they are in two slots.
    ["tests/test_commands.py", "-k", "test_x and not claim_min_idle_time_multiple_streams"],
    # Five tests need replicas, CLUSTER DELSLOTS, or nodes on fixed ports.
    [
        "tests/test_cluster.py",
        "-k",
        "(TestRedisClusterObj or TestNodesManager) and not (node_flag_replicas or address_remap "
        "or cluster_down_error or timeout_error_topology or cluster_retry_object)",
    ],
)


def download(folder: Path) -> Path:
    """The sources of the installed redis-py."""
    words = ["download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", *words, f"redis=={redis.__version__}"], check=True)
    (archive,) = folder.glob("redis-*.tar.gz")
    with tarfile.open(archive) as sources:
        sources.extractall(folder, filter="data")
    return folder / f"redis-{redis.__version__}"


def main(options: list[str]) -> int:
    """The exit code of the first run that has failed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = download(folder)
        shards = Shards(folder / "data", {"appendfsync": "no"}, count=NODES)
        shards.start()
        url = f"redis://127.0.0.1:{shards.port + 1}/0"
        plugins = ["-p", "no:xdist", "-p", "no:cacheprovider"]
        given = [f"--redis-url={url}", f"--redis-cluster-nodes={NODES}"]
        try:
            codes = [
                subprocess.run(
                    [sys.executable, "-m", "pytest", "-q", *plugins, *given, *run, *options],
                    cwd=sources,
                    check=False,
                ).returncode
                for run in RUNS
            ]
        finally:
            shards.stop()
    return next(filter(None, codes), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
