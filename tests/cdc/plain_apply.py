"""`apply` without Spark as a program that a test can kill: `python -m tests.cdc.plain_apply FILE`.

The parts of a batch are applied by threads, each with its own worker.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from millstream.cdc.applier.apply_jobs import ApplyJob, WorkerAnswer
from millstream.cdc.applier.apply_status import ApplyStatus, Reporter
from millstream.cdc.applier.apply_worker import ApplyWorker
from millstream.cdc.applier.driver import Driver
from millstream.cdc.config_file import load
from millstream.cdc.logs import Secrets, open_log
from millstream.cdc.streams.stream_appender import address_of


def main() -> None:
    config = load(Path(sys.argv[1]))
    open_log("apply", Secrets(config))
    workers = [ApplyWorker(config) for _ in range(config.apply.workers)]
    pool = ThreadPoolExecutor(len(workers))

    def run(parts: Sequence[Sequence[ApplyJob]]) -> list[WorkerAnswer]:
        return list(pool.map(lambda pair: pair[0].run(pair[1]), zip(workers, parts, strict=False)))

    status = ApplyStatus()
    with Reporter(address_of(config.millstream), config.millstream.prefix, status):
        Driver(config, run, status).apply(threading.Event())


if __name__ == "__main__":
    main()
