"""Stands for the trainer where only its exit code and last words matter.

    python -m tests.support.fake_trainer COUNTER_FILE CODE[,CODE...] [WORDS]

Ends with the first code in its first life, with the second in its second, and so on. A code of -9
is a SIGKILL.
"""

import os
import sys
from pathlib import Path


def main() -> int:
    counter, codes, words = Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:]
    life = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(life + 1))
    sys.stderr.write("\n".join([f"life {life}", *words]) + "\n")
    sys.stderr.flush()
    code = int(codes[life])
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main())
