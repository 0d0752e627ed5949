"""One ordered sequence from streams on two servers.

    python merge.py redis://localhost:6455 redis://localhost:6456 orders

Follows the stream with this key on both servers, and prints its records by ID, whichever server
they are from. Ends when both streams are sealed and read, or with Ctrl-C.
"""

import signal
import sys

from millstream.client import Event, Shard, connect


def report(event: Event) -> None:
    print(event, file=sys.stderr)


def main() -> None:
    first_url, second_url, key = sys.argv[1:]
    with connect(first_url) as first, connect(second_url) as second:
        # The name is the identity of a shard: in records, in tokens, and in the order.
        shards = [Shard(key, first, f"{key}@first"), Shard(key, second, f"{key}@second")]
        with first.stream(shards, "trim_horizon", on_event=report) as stream:

            def stop(*_: object) -> None:
                stream.stop()

            signal.signal(signal.SIGINT, stop)
            for record in stream.follow():
                print(record.id, record.shard, dict(record), flush=True)


if __name__ == "__main__":
    main()
