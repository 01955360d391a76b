"""What holds for every test: nothing reaches for the network, nothing reports home."""

import os

from atelier import telemetry

telemetry.off_by_default()
os.environ["HF_HUB_OFFLINE"] = "1"
