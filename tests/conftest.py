"""What holds for every test: nothing reaches for the network, nothing reports home."""

import os
import signal
from collections.abc import Sequence

import pytest

from atelier import telemetry

telemetry.off_by_default()
os.environ["HF_HUB_OFFLINE"] = "1"

# A shell starts background jobs with SIGINT ignored, and children inherit that: a test that sends
# Ctrl-C to a process it started would then wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Workers take a file at a time, for its fixtures; files that name a group go together."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))
