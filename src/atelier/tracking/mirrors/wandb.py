"""Weights & Biases. Nothing but what the rows hold: no console, no code, no machine."""

from __future__ import annotations

import wandb

from atelier.tracking.mirrors.base import Opening, Session
from atelier.tracking.mirrors.rows import Row

INIT_SECONDS = 20.0


def opened(opening: Opening) -> Session:
    """The run, with its own steps as the axis of every number."""
    settings = wandb.Settings(
        console="off",
        silent=True,
        disable_git=True,
        disable_code=True,
        save_code=False,
        x_disable_stats=True,
        x_disable_meta=True,
        x_save_requirements=False,
        init_timeout=INIT_SECONDS,
    )
    run = wandb.init(
        project=opening.project,
        name=opening.run_name,
        id=opening.id,
        dir=opening.folder,
        mode=opening.mode,
        resume="allow" if opening.mode == "online" else None,
        config=dict(opening.parameters),
        reinit="create_new",
        settings=settings,
    )
    # Evaluations are scored while later steps are trained: their own count would refuse them.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return _Run(run)


class _Run:
    def __init__(self, run: wandb.Run) -> None:
        self._run = run

    def log(self, row: Row) -> None:
        images = {name: wandb.Image(image) for name, image in row.images().items()}
        self._run.log({**row.values, **images, "step": row.step})

    def close(self) -> None:
        self._run.finish()
        wandb.teardown()  # its service is a process of its own
