"""train/reward_services.json: which servers the train stage has started, for the trainer.

No token stands in it: that is passed by environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atelier.errors import DataError
from atelier.tracking.run_directory import read_json_object, write_json

NAME = "reward_services.json"


def write_services(folder: Path, services: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Reward, or `judges.` and a judge's name -> its replicas: url, pid, restarts, log, GPUs, and
    what it computes with."""
    write_json(folder / NAME, {name: list(replicas) for name, replicas in services.items()})


def read_services(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What `write_services` wrote; empty where no server was started.

    Raises:
        DataError: the file is not what `write_services` writes.
    """
    path = folder / NAME
    if not path.exists():
        return {}
    try:
        return {
            name: [{**replica, "url": str(replica["url"])} for replica in replicas]
            for name, replicas in read_json_object(path).items()
        }
    except (TypeError, KeyError) as error:
        raise DataError(f"{path}: not a list of servers with their url") from error


def read_urls(folder: Path) -> dict[str, list[str]]:
    """The URLs alone, as `read_services`."""
    return {name: [one["url"] for one in found] for name, found in read_services(folder).items()}
