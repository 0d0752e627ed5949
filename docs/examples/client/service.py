"""A service that does the jobs of a stream, and stops in an orderly way.

    python service.py jobs workers

Start it several times: each job goes to one of the processes. A job that fails, or whose process is
killed, goes to another one after 30 seconds. SIGTERM and Ctrl-C let the process finish its job.
"""

import logging
import os
import signal
import sys

from millstream.client import Record, connect

URL = os.environ.get("MILLSTREAM_URL", "redis://localhost:6455")

log = logging.getLogger("service")


def work(job: Record[str]) -> None:
    print("done:", job["name"], flush=True)


def main() -> None:
    key, group = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    # batch=1: a process takes a job when it has finished the one before.
    with (
        connect(URL) as ms,
        ms.consumer(key, group, retry=30, position="trim_horizon", batch=1) as jobs,
    ):

        def stop(*_: object) -> None:
            jobs.stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        log.info("ready, %s jobs to do", jobs.lag())
        for job in jobs.follow():
            try:
                work(job)
            except Exception:
                log.exception("job %s failed, it will be delivered again", job.id)
            else:
                jobs.ack(job)
        log.info("stopped after %d jobs", jobs.metrics()["records"])


if __name__ == "__main__":
    main()
