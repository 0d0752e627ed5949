"""Appends a made-up week of four temperature sensors to a server, for the other examples.

    python docs/examples/sensors.py redis://localhost:6455

The same entries each time, with ids of November 2026; run twice, it appends nothing again.
"""

import argparse
import math
import random
from datetime import UTC, datetime

import redis

START_MS = int(datetime(2026, 11, 9, tzinfo=UTC).timestamp() * 1000)
STEP_MS = 2 * 60 * 1000
DAYS = 7
HOUR_MS = 3600 * 1000
SENSORS = {"sensor:hall": 19.0, "sensor:office": 21.5, "sensor:cellar": 14.0, "sensor:roof": 9.0}


def temperature(mean: float, hours: float, noise: float) -> float:
    """Warmest in the afternoon; the colder the room, the further it swings."""
    swing = (24 - mean) / 4
    return mean + swing * math.sin((hours - 9) / 24 * 2 * math.pi) + noise


def append(server: redis.Redis, days: int) -> None:
    random.seed(7)
    for key, mean in SENSORS.items():
        pipeline = server.pipeline(transaction=False)
        for at_ms in range(0, days * 24 * HOUR_MS, STEP_MS):
            value = temperature(mean, at_ms / HOUR_MS, random.gauss(0, 0.4))
            id_ = f"{START_MS + at_ms}-0"
            words = ("temperature", f"{value:.2f}")
            pipeline.execute_command("TAPPENDONCE", key, "ID", id_, *words)
        pipeline.execute()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server")
    parser.add_argument("--days", type=int, default=DAYS)
    arguments = parser.parse_args()
    append(redis.Redis.from_url(arguments.server), arguments.days)


if __name__ == "__main__":
    main()
