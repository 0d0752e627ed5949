"""What to type to get at this installation's `millstream`, for sentences that advise it.

Behind `make serve` it is in a virtual environment that the shell knows nothing of: the bare name
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
    own = os.path.join(os.path.dirname(sys.argv[0]), NAME)
    found = shutil.which(NAME)
    bare = not os.path.isfile(own) or (found is not None and os.path.samefile(found, own))
    return shlex.join([NAME if bare else own, *map(str, words)])
