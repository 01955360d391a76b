"""Do the jobs of a file, one after the other (see the folder's __init__.py).

jobs.json is a list of {"family", "format": "adapter" | "merged", "directory", "base", "reference",
"weights", "dtype", "device", "root", "made"}; one outcome a job is written: {"error": text or null,
"tensors", "digest", "scaling", "frozen"}, and the arrays that were computed to the .npz file that
`made` names.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

PACKAGE = "clean_process"


def _run(job: Mapping[str, Any]) -> dict[str, Any]:
    import numpy as np
    import torch

    torch.backends.cudnn.allow_tf32 = False  # fp32 is compared to rounding: TF32 would be noise
    family = import_module(f"{PACKAGE}.of_{job['family']}")
    model = family.load(job)
    tensors, scaling = import_module(f"{PACKAGE}.arrived").arrived(family, model, job["format"])
    digest_of = import_module(f"{PACKAGE}.digests").tensors_digest
    outcome = {
        "error": None,
        "tensors": len(tensors),
        "digest": digest_of(tensors),
        "scaling": scaling,
        "frozen": {part: digest_of(held) for part, held in family.frozen(model).items()},
    }
    with torch.no_grad():
        np.savez(job["made"], **family.reproduce(model, job["reference"]))
    return outcome


def _open_package() -> None:
    """Make this folder, which is run by itself, the package that its modules know it as."""
    spec = spec_from_file_location(PACKAGE, Path(__file__).with_name("__init__.py"))
    assert spec is not None  # the file is there
    sys.modules[PACKAGE] = module_from_spec(spec)


def main(jobs_file: str, outcomes_file: str) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"  # before the first import of the hub's client
    _open_package()
    with open(jobs_file, encoding="utf-8") as file:
        jobs = json.load(file)
    outcomes = []
    for job in jobs:
        try:
            outcomes.append(_run(job))
        except Exception as error:  # whatever loading raises is this job's result, not the end
            traceback.print_exc()
            outcomes.append({"error": f"{type(error).__name__}: {error}"})
    with open(outcomes_file, "w", encoding="utf-8") as file:
        json.dump(outcomes, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
