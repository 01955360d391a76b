"""When some ranks only sample and the others only train (launch.rollout_processes)."""

from __future__ import annotations

from collections.abc import Iterator

from atelier.config.schema import RunConfig

_KEY = "launch.rollout_processes"


def apart_rejections(config: RunConfig, ranks: int) -> Iterator[tuple[str, str]]:
    """Field and reason of every setting that cannot be with it."""
    launch = config.launch
    apart = launch.rollout_processes
    if not apart:
        return
    if apart >= ranks:
        yield _KEY, f"{apart} of {ranks} process(es) leave none to train; raise launch.processes"
    if not config.policy.denoises:
        yield (
            _KEY,
            f"policies that denoise only, which policy.family {config.policy.family} is not; use 0",
        )
    if launch.engine != "ddp":
        yield _KEY, f"needs launch.engine: ddp, and it is {launch.engine}; use 0, or ddp"
    if launch.nodes > 1:
        yield _KEY, f"on one node only, and launch.nodes is {launch.nodes}; use 0"
    if not config.train.one_step_off:
        yield (
            "train.one_step_off",
            f"ranks that sample and ranks that train ({_KEY} {apart}) would always wait for each "
            "other; use true",
        )
    if config.rollout.window.scope == "rank":
        yield (
            "rollout.window.scope",
            f"rank: what is trained would depend on how many ranks sample ({_KEY} {apart}); use "
            "step or group",
        )
