"""Making the embedded judge: `python -m atelier.judge_models.tiny train --out DIR`, and `measure`.

Needs torch, transformers, diffusers and the embedded autoencoder; about six minutes on one GPU.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from dataclasses import fields
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m atelier.judge_models.tiny", description=__doc__
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    train = verbs.add_parser("train", help="render scenes, train, save, measure")
    train.add_argument("--out", type=Path, required=True)
    measure = verbs.add_parser("measure", help="accuracy on held-out scenes")
    measure.add_argument("path", type=Path)
    for verb in (train, measure):
        verb.add_argument("--heldout", type=int, default=1500, help="scenes to measure on")

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    from atelier.judge_models.tiny.measure import accuracy
    from atelier.judge_models.tiny.training import Options

    for option in fields(Options):
        name = f"--{option.name.replace('_', '-')}"
        train.add_argument(name, type=type(option.default), default=option.default)
    measure.add_argument("--device", default="cpu")
    parsed = parser.parse_args()
    if parsed.verb == "measure":
        result = accuracy(parsed.path, parsed.heldout, parsed.device)
        sys.stdout.write(json.dumps(result) + "\n")
        return 0

    from atelier.judge_models.tiny.saving import save
    from atelier.judge_models.tiny.training import train as train_judge

    options = Options(**{one.name: getattr(parsed, one.name) for one in fields(Options)})
    model, record = train_judge(options)
    save(model, parsed.out)
    record["accuracy"] = accuracy(parsed.out, parsed.heldout, options.device)
    logging.info("%s", record["accuracy"])
    (parsed.out / "training.json").write_text(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
