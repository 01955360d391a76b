"""A process before a real reward service that misbehaves on command.

    python -m tests.support.faulty_service URL COMMAND_FILE PORT_FILE

COMMAND_FILE holds the name of a fault (tests/support/wire_faults.py), read at every POST; while it
is empty, requests are passed on.
"""

import sys
import threading
from pathlib import Path

from tests.support.reward_services import faulty
from tests.support.wire_faults import FAULTS, Fault, anothers


def main() -> None:
    behind, command, port_file = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    faults = {**FAULTS, "answers mixed up": anothers}

    def commanded(_: int) -> Fault | None:
        return faults.get(command.read_text())

    with faulty(behind, commanded) as (url, _):
        aside = port_file.with_suffix(".aside")
        aside.write_text(url.rpartition(":")[2])
        aside.replace(port_file)
        threading.Event().wait()


if __name__ == "__main__":
    main()
