"""Follow streams, and continue where the last run stopped.

    python resume.py place.json orders:0 orders:1

Prints every record once, also when the program is stopped with Ctrl-C or kill and started again. A
record is printed again only if the program dies between printing it and storing the place.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from millstream.client import RecordsExpired, connect

URL = os.environ.get("MILLSTREAM_URL", "redis://localhost:6455")


def load(path: Path) -> Any:
    """The place of the last run; the oldest record if there was none."""
    return json.loads(path.read_text()) if path.exists() else "trim_horizon"


def save(path: Path, token: dict[str, object]) -> None:
    """A crash leaves the old file or the new one, never half of it."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(token))
    new.replace(path)


def main() -> None:
    path, keys = Path(sys.argv[1]), sys.argv[2:]
    with connect(URL) as ms, ms.stream(keys, load(path)) as stream:

        def stop(*_: object) -> None:
            stream.stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        while True:
            try:
                for record in stream.follow():
                    print(record.id, record.shard, dict(record), flush=True)
                    save(path, stream.token)
                break
            except RecordsExpired as gap:  # raised once for each gap; the stream then continues
                print(gap, file=sys.stderr)
        save(path, stream.token)


if __name__ == "__main__":
    main()
