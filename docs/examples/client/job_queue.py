"""A job queue: run it as many times as you like, on any number of machines.

    python job_queue.py mail senders

    redis-cli -p 6455 XADD mail '*' to ann@example.com

SIGTERM and Ctrl-C let the jobs that run end.
"""

import logging
import os
import signal
import sys

from millstream.client import Dead, Job, Retry, connect

key, group = sys.argv[1:]
logging.basicConfig(level=logging.INFO)
ms = connect(os.environ.get("MILLSTREAM_URL", "redis://localhost:6455"))
worker = ms.worker(
    key,
    group,
    concurrency=8,
    timeout=30,
    backoff=[1, 10, 60, 600],
    max_deliver=5,
    dead_letter=f"{key}:dead",
    time_limit=300,
)


@worker.handler
def send(job: Job[str]) -> None:
    if job["to"] == "everybody" and job.attempt == 1:
        raise Retry("later", delay=1)
    if job["to"] == "unknown":
        raise Dead("no such address")
    print(f"sent to: {job['to']}\n", end="", flush=True)  # one write: jobs run in threads


def stop(*_: object) -> None:
    worker.stop()


for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, stop)
logging.info("ready")
worker.run()
