"""Rewards served to several runs, owned by none of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from atelier.config.access_tokens import bearer_token
from atelier.config.paths import from_root, make_folder
from atelier.config.schema import RunConfig
from atelier.config.sections.judge import JudgeConfig
from atelier.config.sections.rewards import JudgedSection
from atelier.config.sections.servers import ServerConfig
from atelier.errors import ConfigError
from atelier.rewards.service.__main__ import require_token_beyond_loopback
from atelier.rewards.service.protocol import TOKEN_VARIABLE
from atelier.rewards.service.settings import ServiceSettings
from atelier.rewards.service_file import write_services
from atelier.stages.servers.managed import ManagedServer, ServerSpec
from atelier.stages.servers.ports import port_problem
from atelier.stages.servers.specs import Place, reward_spec
from atelier.stages.servers.waiting import POLL_SECONDS, wait_until_ready

logger = logging.getLogger(__name__)


def serve(
    config: RunConfig,
    folder: Path,
    host: str,
    port: int,
    until: Callable[[], bool],
    ready: Callable[[str], None] = lambda url: logger.info("rewards: served at %s", url),
) -> None:
    """Serve all rewards of a configuration to whoever has `placement: remote`, and supervise it.

    Args:
        folder: for log, configuration and records; relative to the repository.
        host: address to bind; another than loopback needs ATELIER_REWARD_TOKEN in the environment.
        port: 0 takes a free one.
        until: asked several times a second; true ends the service.
        ready: called once, with the URL, when every golden sample is scored.

    Raises:
        ConfigError: no reward, no token, or a golden sample that can never be right.
        Stopped: the service failed too often.
    """
    token = bearer_token(TOKEN_VARIABLE)
    require_token_beyond_loopback(host, token)
    sections = config.rewards.sections()
    if not sections:
        raise ConfigError("rewards: none is set, so there is nothing to serve")
    folder = from_root(folder)
    _require_place(folder, host, port)
    server = ManagedServer(_spec(config, folder, host, port, token))
    server.start()
    try:
        wait_until_ready([server], until)
        if server.is_ready:
            write_services(folder, {name: [{"url": server.url}] for name in sections})
            ready(server.url)
        while not until():
            if server.problem is not None:
                raise server.problem
            time.sleep(POLL_SECONDS)
    finally:
        server.stop()


def _spec(config: RunConfig, folder: Path, host: str, port: int, token: str | None) -> ServerSpec:
    """How all rewards are served as one, with what of this environment they need to know."""
    startup = max(section.startup for section in config.rewards.sections().values())
    settings = ServiceSettings(rewards=config.rewards, judges=_asked(config))
    place = Place(
        label="rewards",
        base=folder / "service",
        record=folder / "processes" / "service.json",
        token=token,
        host=host,
        port=port,
        foreign=config.token_variables - {one.token_env for one in settings.judges.values()},
    )
    return reward_spec(place, lambda: settings, ServerConfig(), startup, ["--host", host])


def _asked(config: RunConfig) -> dict[str, JudgeConfig]:
    """The judges that the rewards ask.

    Raises:
        ConfigError: one of them is started by runs, and no run is here.
    """
    found = {}
    for path, section in config.rewards.by_path().items():
        if not isinstance(section, JudgedSection):
            continue
        judge = config.judges[section.judge]
        if judge.placement == "managed":
            raise ConfigError(
                f"{path}.judge: a run starts and stops {section.judge}, which is managed; for a "
                f"service that several runs share set judges.{section.judge}.placement to remote "
                "or in_process"
            )
        found[section.judge] = judge
    return found


def _require_place(folder: Path, host: str, port: int) -> None:
    """Refuse what the service could not have, before anything starts.

    Raises:
        ConfigError: something listens on the port, or the folder cannot be one.
    """
    make_folder(folder, "--folder")
    if problem := port_problem(host, port):
        raise ConfigError(f"--port: {problem}; end what does, or choose another")
