"""What a Prefect server has to know before runs can be started on it.

Everything here may be done again at any time, and changes nothing that is as it should be.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import prefect
import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectNotFound

from atelier.config.paths import repository_root
from atelier.errors import AtelierError
from flows.local_platform.environment import for_services, prefect_home
from flows.local_platform.services import NODES_POOL, WORK_POOL
from flows.local_platform.state import logs

GPU_SLOTS, DVC_SLOTS = "gpu", "dvc"


def create_work_pools(client: SyncPrefectClient) -> None:
    """The process work pools, where there are none: they may have been changed on purpose."""
    for name in (WORK_POOL, NODES_POOL):
        try:
            client.read_work_pool(name)
        except ObjectNotFound:
            from prefect.workers.process import ProcessWorker

            template = ProcessWorker.get_default_base_job_template()
            pool = WorkPoolCreate(name=name, type="process", base_job_template=template)
            client.create_work_pool(pool)


def create_limits(client: SyncPrefectClient, gpu_slots: int | None) -> int:
    """Global concurrency limits: one job a GPU, one user of DVC's lock.

    Args:
        gpu_slots: None keeps an existing limit, and else counts the GPUs (1 where there is none).

    Returns:
        The slots of `gpu`.
    """
    _limit(client, DVC_SLOTS, lambda: 1)
    if gpu_slots is not None:
        client.upsert_global_concurrency_limit_by_name(GPU_SLOTS, gpu_slots)
        return gpu_slots
    return _limit(client, GPU_SLOTS, lambda: max(1, count_gpus()))


def _limit(client: SyncPrefectClient, name: str, default: Callable[[], int]) -> int:
    try:
        return int(client.read_global_concurrency_limit_by_name(name).limit)
    except ObjectNotFound:
        client.upsert_global_concurrency_limit_by_name(name, limit := default())
        return limit


def count_gpus() -> int:
    """GPUs of this machine, as nvidia-smi lists them; 0 where it does not answer."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def deploy(client: SyncPrefectClient, api_url: str) -> bool:
    """Register the deployments of prefect.yaml as `prefect deploy --all` does.

    Not when server and files are as they were the last time: it takes seconds.

    Returns:
        Whether it did.

    Raises:
        AtelierError: Prefect refused; its own words are in the message.
    """
    memory, fingerprint = prefect_home() / "deployed", f"{api_url} {_fingerprint()}"
    if memory.exists() and memory.read_text() == fingerprint and not _missing(client):
        return False
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"],
        cwd=repository_root(),
        env=for_services(api_url),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    _log().write_text(done.stdout + done.stderr)
    missing = _missing(client)
    if done.returncode != 0 or missing:
        lines = (done.stdout + done.stderr).strip().splitlines()[-12:]
        raise AtelierError(
            f"prefect.yaml cannot be deployed (missing: {', '.join(missing) or 'none'}); all of "
            f"what Prefect said is in {_log()}, which ends with\n" + "\n".join(lines)
        )
    memory.write_text(fingerprint)
    return True


def _fingerprint() -> str:
    """Of all that a deployment is made from: the file, the flows' signatures and docstrings, the
    checkout's place."""
    root = repository_root()
    digest = hashlib.sha256(f"{prefect.__version__} {root}".encode())
    for path in [root / "prefect.yaml", *sorted((root / "flows").glob("*.py"))]:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _missing(client: SyncPrefectClient) -> list[str]:
    """Declared deployments that the server does not have."""
    missing = []
    for name in declared_deployments():
        try:
            client.read_deployment_by_name(name)
        except ObjectNotFound:
            missing.append(name)
    return missing


def declared_deployments() -> list[str]:
    """`flow/name` of every deployment in prefect.yaml. A flow has its function's name."""
    text = (repository_root() / "prefect.yaml").read_text(encoding="utf-8")
    declared: list[dict[str, Any]] = yaml.safe_load(text)["deployments"]
    return [f"{re.split('[.:]', one['entrypoint'])[-1]}/{one['name']}" for one in declared]


def _log() -> Path:
    return logs() / "deploy.log"
