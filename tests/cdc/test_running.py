"""`run` and the processes of its sources."""

from __future__ import annotations

import subprocess
import sys

from tests.cdc.feeding import config_text, parsed

from millstream.pipeline.cdc.reader.running import Child

KILLED = 'import sys; sys.stdout.write(\'{"reader": "reading"}\\n{"reader": "pau\')'


def test_a_report_of_which_a_killed_process_wrote_a_part_is_left_out() -> None:
    config = parsed(config_text(1, "postgresql://nowhere/dw"))
    child = Child(config, config.sources[0], lambda source, report: None)
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE) as process:
        child._listen(process)
    assert child.report == {"reader": "reading"}
