"""How each server is started: program, arguments, environment, files."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atelier.config.nodes_token import TOKEN_VARIABLE as NODES_TOKEN_VARIABLE
from atelier.config.paths import repository_root
from atelier.config.sections.judge import JudgeConfig
from atelier.config.sections.launch import LOOPBACK
from atelier.config.sections.servers import Placed, ServerConfig
from atelier.judge import usage as judge_usage
from atelier.processes.gpus import VISIBLE
from atelier.rewards.service.protocol import MANAGED_TOKEN_VARIABLE, TOKEN_VARIABLE
from atelier.rewards.service.settings import ServiceSettings, write_settings
from atelier.stages.servers import vllm
from atelier.stages.servers.interpreter import interpreter
from atelier.stages.servers.kinds import RewardServiceKind
from atelier.stages.servers.managed import ServerSpec
from atelier.stages.servers.served_models import judge_serving


@dataclass(frozen=True)
class Place:
    """Where one server runs, and what it may know.

    Attributes:
        label: such as `judges.scene-0`.
        base: + .json, .log, .port are its files.
        record: where its guard says what runs.
        gpus: what it sees of this machine's; empty: none.
        port: 0 takes a free one.
        foreign: variables of this environment with tokens that are not the server's to know.
    """

    label: str
    base: Path
    record: Path
    token: str | None
    gpus: Sequence[str] = ()
    host: str = LOOPBACK
    port: int = 0
    foreign: Collection[str] = ()


def reward_spec(
    place: Place,
    settings: Callable[[], ServiceSettings],
    server: ServerConfig,
    startup: float,
    arguments: Sequence[str] = (),
) -> ServerSpec:
    """Rewards served by `python -m atelier.rewards.service`, or by a command of the user's.

    Args:
        settings: what it scores; asked when it is started, for judges have URLs by then.
        arguments: more of its command line.

    Raises:
        ConfigError: its environment cannot be had.
    """
    python = interpreter(server.environment, bool(place.gpus), place.label)
    file, port_file = place.base.with_suffix(".json"), place.base.with_suffix(".port")
    usage = place.base.with_name(judge_usage.NAME)

    def command(port: int) -> list[str]:
        write_settings(file, settings())
        if server.command is not None:
            return _own(server.command, port, port_file, file)
        program = [str(python), "-m", "atelier.rewards.service", "--config", str(file)]
        files = ["--port-file", str(port_file), "--judge-usage", str(usage)]
        return [*program, "--port", str(port), *files, *arguments]

    own = {TOKEN_VARIABLE: place.token} if place.token else {}
    # Judges that the run started have the same token as its services.
    judges = {MANAGED_TOKEN_VARIABLE: place.token} if place.token else {}
    return _spec(place, RewardServiceKind, command, startup, {**own, **judges, **server.variables})


def vllm_spec(place: Place, serving: vllm.Serving, section: Placed) -> ServerSpec:
    """A model served by vLLM, or by a command of the user's that answers alike.

    Args:
        section: the configuration of what it serves.

    Raises:
        ConfigError: its environment cannot be had, or holds no vLLM that serves this.
    """
    on_gpu = bool(place.gpus)
    port_file = place.base.with_suffix(".port")
    server = section.server
    python = Path()
    if server.command is None:
        python = interpreter(server.environment or "vllm", on_gpu, place.label)
        vllm.installed_version(python, serving.oldest)

    def command(port: int) -> list[str]:
        if server.command is not None:
            return _own(server.command, port, port_file, None)
        port = _announced(port, port_file)
        return vllm.command(serving, python, port, on_gpu)

    token = place.token or ""
    own = {**vllm.variables(serving, token, on_gpu), **server.variables}
    return _spec(place, lambda: vllm.VllmKind(serving), command, section.startup, own)


def judge_spec(place: Place, name: str, judge: JudgeConfig) -> ServerSpec:
    """A judge served by vLLM; see vllm_spec."""
    return vllm_spec(place, judge_serving(judge, name), judge)


def _spec(
    place: Place,
    kind: Callable[[], vllm.VllmKind | RewardServiceKind],
    command: Callable[[int], Sequence[str]],
    startup: float,
    own: Mapping[str, str],
) -> ServerSpec:
    return ServerSpec(
        label=place.label,
        kind=kind,
        command=command,
        log=place.base.with_suffix(".log"),
        record=place.record,
        port_file=place.base.with_suffix(".port"),
        environment=_environment(place, own),
        startup_seconds=startup,
        token=place.token,
        host=place.host,
        port=place.port,
    )


def _environment(place: Place, own: Mapping[str, str]) -> dict[str, str]:
    """This process's, without its tokens and other GPUs, and with what is the server's own."""
    hidden = {TOKEN_VARIABLE, MANAGED_TOKEN_VARIABLE, NODES_TOKEN_VARIABLE, *place.foreign}
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    root = repository_root()  # another environment does not have Atelier installed
    paths = [str(root / "src"), str(root), *filter(None, [kept.get("PYTHONPATH")])]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        VISIBLE: ",".join(place.gpus),
        **own,
    }


def _own(words: Sequence[str], port: int, port_file: Path, config: Path | None) -> list[str]:
    """A command of the user's with its placeholders filled."""
    port = _announced(port, port_file)
    found = [word.replace("{port}", str(port)) for word in words]
    return [word.replace("{config}", str(config)) for word in found] if config else found


def _announced(port: int, port_file: Path) -> int:
    """The port, or a free one, written where the supervisor looks for it: the program itself does
    not say which it took."""
    if port == 0:
        with socket.socket() as probe:
            probe.bind((LOOPBACK, 0))
            port = probe.getsockname()[1]
    port_file.parent.mkdir(parents=True, exist_ok=True)
    port_file.write_text(f"{port}\n", encoding="utf-8")
    return port
