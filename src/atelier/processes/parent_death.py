"""Die with the process that started us, however it dies.

    python -m atelier.processes.parent_death SIGTERM 4711 atelier.training --config ...

runs a module with the kernel's parent-death signal set; 4711 is the pid that must still be the
parent, so that a parent that died before the request was made is noticed too. Linux only: other
systems have no such signal, and there the owner's own clean-up is all there is.

The signal comes when the *thread* that forked ends, so owners start processes from their main
thread.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(signum: signal.Signals, parent: int) -> None:
    """Ask the kernel to send `signum` to this process when `parent`, its parent, is gone.

    Raises:
        SystemExit: the parent is gone already.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        raise SystemExit(128 + signum)


def main() -> None:
    signum, parent, module, *arguments = sys.argv[1:]
    die_with_parent(signal.Signals[signum], int(parent))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
