"""What to type to get at this installation's `millstream`, for sentences that advise it.

After `make serve` it is in a virtual environment that is not on the shell's path: the bare name
would not be found, or be another installation's.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys

NAME = "millstream"


def advised(*words: object) -> str:
    """A command line of ours as it can be typed where this process was started."""
    folders = (os.path.dirname(sys.argv[0]), os.path.dirname(sys.executable))
    own = next(filter(os.path.isfile, (os.path.join(folder, NAME) for folder in folders)), None)
    found = shutil.which(NAME)
    if own is None or (found is not None and os.path.samefile(found, own)):
        own = NAME
    return shlex.join([own, *map(str, words)])
