"""Options and option types that several tools share."""

from __future__ import annotations

import math
from typing import Any

import click

from millstream.remote import DEFAULT_URL


class Seconds(click.FloatRange):
    """A time in seconds. The comparison of click lets `nan` pass."""

    name = "seconds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a time.", param, ctx)
        return seconds


url_option = click.option(
    "--url",
    envvar="MILLSTREAM_URL",
    default=DEFAULT_URL,
    show_default=True,
    metavar="URL",
    help="Server: redis://, rediss:// or unix://; also from MILLSTREAM_URL. The password can come "
    "from REDISCLI_AUTH.",
)
