"""What holds for every test: nothing reaches for the network, nothing reports home, and tests that
run side by side share the cores, a thread each."""

import os
import signal

from atelier import telemetry

telemetry.off_by_default()
os.environ["HF_HUB_OFFLINE"] = "1"
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported

# A shell starts background jobs with SIGINT ignored, and children inherit that: a test that sends
# Ctrl-C to a process it started would then wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
