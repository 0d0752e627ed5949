"""The command that runs this installation's `millstream`, for messages that recommend it.

After `make serve` the program is in a virtual environment outside the shell's path: its name alone
would not be found, or would run another installation.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys

NAME = "millstream"


def advised(*words: object) -> str:
    """A command line of ours in a form that works where this process was started."""
    folders = (os.path.dirname(sys.argv[0]), os.path.dirname(sys.executable))
    own = next(filter(os.path.isfile, (os.path.join(folder, NAME) for folder in folders)), None)
    found = shutil.which(NAME)
    if own is None or (found is not None and os.path.samefile(found, own)):
        own = NAME
    return shlex.join([own, *map(str, words)])
