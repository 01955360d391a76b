"""A stage that fails at once leaves the mirror its first look to the end of the process."""

import subprocess
import sys


def test_what_mlflow_imports_can_still_be_imported_at_exit() -> None:
    script = (
        "import atexit, concurrent.futures, atelier.stages.mirroring\n"
        "atexit.register(lambda: print(concurrent.futures.ThreadPoolExecutor.__name__))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout == "ThreadPoolExecutor\n", done.stderr
    assert "can't register atexit" not in done.stderr
