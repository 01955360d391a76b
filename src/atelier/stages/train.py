"""Train: start the trainer, watch it, score its evaluations beside it, restart it after a crash.

The trainer is a process of its own (python -m atelier.processes.torchrun), so that its crash costs
no more than the steps since its last checkpoint. Its output goes to train/trainer.log, which is
shown here as it grows. On several nodes there is one on each (stages/nodes), and they live and end
together.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atelier import errors, telemetry
from atelier.config.paths import repository_root
from atelier.config.schema import RunConfig
from atelier.disk import free_bytes, full_disk_message
from atelier.processes.gpus import VISIBLE
from atelier.processes.supervised import SupervisedProcess
from atelier.report.run_data import metric_records
from atelier.stages import mirroring, quiet
from atelier.stages.baseline import local_model
from atelier.stages.follower import EvaluationFollower
from atelier.stages.frame import Stage, open_stage
from atelier.stages.log_tail import LogTail
from atelier.stages.nodes.meeting import Ending, Meeting
from atelier.stages.remote_servers import require_answers
from atelier.stages.run_file import shown_path
from atelier.stages.servers.run_servers import RunServers
from atelier.stages.suite_judges import judge_beside
from atelier.stages.system_samples import SystemSamples
from atelier.tracking.run_directory import RunDirectory

logger = logging.getLogger(__name__)

OUTPUTS = (
    "metrics.jsonl",
    "events.jsonl",
    "checkpoints/*/MANIFEST.json",
    "evaluation/*/*/summary.json",
)
POLL_SECONDS = 0.5
LEAST_FREE_BYTES = 64 * 1024  # below, a log line may not fit
DONE, CANCELLED = 0, 143
# What no restart mends: the trainer itself said why it ended.
_MEANT = {2: errors.ConfigError, 3: errors.PlanError, 75: errors.Stopped}


class TrainerCrashed(errors.AtelierError):
    """The trainer crashed more often than `launch.max_restarts`; the run can be resumed."""


class TrainerCancelled(errors.AtelierError):
    """The trainer was asked to end (SIGTERM); the run can be resumed."""

    exit_code = CANCELLED


def run(run: RunDirectory) -> dict[str, Any]:
    """Train to the last step, from the newest checkpoint if there is one.

    Raises:
        ConfigError, PlanError, Stopped: the trainer ended with 2, 3 or 75, with its message.
        TrainerCrashed: it crashed too often.
        TrainerCancelled: it was ended from outside.
    """
    own = stage(run)
    return own.execute(lambda: _work(own))


def stage(run: RunDirectory) -> Stage:
    """The stage of a run, its inputs found."""
    return open_stage("train", run, _inputs, OUTPUTS)


def _inputs(run: RunDirectory, config: RunConfig) -> list[Path]:
    pictures = [run.data / "sft.parquet"] if config.train.sft.enabled else []
    prompts = [run.data / "train.parquet", run.data / "heldout.parquet"]
    return [*prompts, *pictures, *local_model(config)]


def _work(stage: Stage) -> dict[str, Any]:
    run, config = stage.run, stage.config
    mirroring.follow(run)
    require_answers(config)
    with (
        Meeting(run, config) as nodes,
        RunServers(run, config) as servers,
        judge_beside(config, servers, run.train / "evaluation") as judge,
        EvaluationFollower(run, config, judge) as follower,
    ):
        _supervise(run, config, servers, nodes)
        nodes.release()  # the others' GPUs need not wait for scores
        follower.finish()
    steps = metric_records(run)
    if not steps:  # a trainer that is done has written them
        raise errors.ConfigError(
            f"{run.metrics} is gone: the run's directory was moved or emptied while it was "
            "trained; put it back where it was and resume the run"
        )
    last = steps[-1]
    return {
        "steps": last["step"],
        "reward_first": steps[0]["reward/mean"],
        "reward_last": last["reward/mean"],
    }


def _supervise(run: RunDirectory, config: RunConfig, servers: RunServers, nodes: Meeting) -> None:
    """One trainer after another until one is done; each goes on from the last checkpoint."""
    restarts = 0
    while True:
        ending = _one_life(run, config, servers, nodes)
        code, message = ending.code, ending.error
        if code == DONE:
            return
        if code in _MEANT:
            kind = getattr(errors, message.kind or "", None)
            if code == errors.Stopped.exit_code and kind is None:
                raise errors.Stopped(_unsaid(run))
            raise (kind or _MEANT[code])(message.text)
        if code == CANCELLED:
            raise TrainerCancelled("the trainer was ended from outside; resume the run to go on")
        if restarts == config.launch.max_restarts:
            raise TrainerCrashed(
                f"the trainer crashed {restarts + 1} times (exit code {code}), more than "
                f"launch.max_restarts={config.launch.max_restarts} allows. Last words: "
                f"{message.text}. All of its output: {shown_path(run.train / 'trainer.log')}"
            )
        restarts += 1
        logger.warning(
            "train: the trainer crashed (exit code %d); restart %d of %d from its last checkpoint",
            code,
            restarts,
            config.launch.max_restarts,
        )


def _unsaid(run: RunDirectory) -> str:
    """Why a trainer stopped that could not write it into its log: hardly anything but the disk."""
    if free_bytes(run.train) < LEAST_FREE_BYTES:
        return full_disk_message(f"{run.root.name}/train", run.train)
    return f"the trainer stopped itself; {run.root.name}/train/trainer.log may say why"


def _one_life(run: RunDirectory, config: RunConfig, servers: RunServers, nodes: Meeting) -> Ending:
    """Run one trainer to its end, here or on another node, showing its log meanwhile."""
    tail = LogTail(run.train / "trainer.log")
    with (
        nodes.life() as life,
        SupervisedProcess(
            [sys.executable, "-m", *trainer_command(run, config, life.place)],
            run.train / "trainer.log",
            {**trainer_environment(config), **servers.environment},
            repository_root(),
            record=run.processes / "trainer.json",
        ) as process,
        SystemSamples(run, process.pid, _gpus(config)),
    ):
        while (code := process.poll()) is None and life.failure() is None:
            tail.show()
            servers.check()
            time.sleep(POLL_SECONDS)
        here = None if code is None else Ending(code, tail.last_error())
        ending = life.ending(here)
    tail.show()
    return ending


def _gpus(config: RunConfig) -> str:
    """The GPUs this run has claimed (processes/gpus.py)."""
    return "" if config.launch.device == "cpu" else os.environ.get(VISIBLE, "")


def trainer_command(run: RunDirectory, config: RunConfig, place: Sequence[str]) -> list[str]:
    """What `python -m` is given to train a run on one node.

    Args:
        place: torchrun's arguments that say where the agents of other nodes are, if there are any.
    """
    ranks = ("--nproc-per-node", str(config.launch.processes))
    torchrun = ["atelier.processes.torchrun", *ranks, *place]
    files = ["--config", str(run.config("train")), "--run", str(run.root)]
    return [*torchrun, "atelier.training", *files]


def trainer_environment(config: RunConfig) -> dict[str, str]:
    """This process's environment, with CPU threads fixed and telemetry off."""
    threads = str(config.launch.threads_of_a_rank)
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "TOKENIZERS_PARALLELISM": "false",
        # The whole stop stays well under the 30 s that Prefect gives a cancelled flow.
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "10",
    }
    telemetry.off_by_default(environment)
    quiet.libraries_by_default(environment)
    return environment
