"""SwanLab. Nothing but what the rows hold: no console, no code, no machine."""

from __future__ import annotations

import swanlab
from swanlab.sdk.internal.pkg import console

from atelier.tracking.mirrors.base import Opening, Session
from atelier.tracking.mirrors.rows import Row

console.c.quiet = True  # it would tell the console of each run where its files lie

_NOTHING_ELSE = swanlab.Settings.Probe(
    hardware=False,
    runtime=False,
    requirements=False,
    git=False,
    swanlab=False,
    monitor=False,
)


def opened(opening: Opening) -> Session:
    """The run there; its files lie in the opening's folder."""
    settings = swanlab.Settings(
        interactive=False,
        probe=_NOTHING_ELSE,
        terminal=swanlab.Settings.Terminal(proxy_type="none"),
    )
    run = swanlab.init(
        project=opening.project,
        name=opening.run_name,
        log_dir=str(opening.folder),
        mode=opening.mode,
        config=dict(opening.parameters),
        settings=settings,
        **({"id": opening.id, "resume": "allow"} if opening.mode == "online" else {}),
    )
    return _Run(run)


class _Run:
    def __init__(self, run: swanlab.Run) -> None:
        self._run = run

    def log(self, row: Row) -> None:
        images = {name: swanlab.Image(image) for name, image in row.images().items()}
        self._run.log({**row.values, **images}, step=row.step)

    def close(self) -> None:
        self._run.finish()
