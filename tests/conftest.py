"""What holds for every test: nothing reaches for the network, nothing reports home."""

import os
import signal

from atelier import telemetry

telemetry.off_by_default()
os.environ["HF_HUB_OFFLINE"] = "1"

# A shell starts background jobs with SIGINT ignored, and children inherit that: a test that sends
# Ctrl-C to a process it started would then wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
