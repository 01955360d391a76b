"""The managed servers of a run, up before training and gone after it.

What draws completions and judges come first, beside rewards that ask none of them; the others
follow when the judges have URLs. All listen on loopback and ask for a random token that this
process and the trainer know.
"""

from __future__ import annotations

import secrets
import shutil
import threading
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from atelier.config.placement import SAMPLER, Placements, gpus_wanted, managed_servers, place
from atelier.config.schema import RunConfig
from atelier.config.sections.judge import JudgeConfig
from atelier.config.sections.rewards import JudgedSection, RewardSection
from atelier.config.sections.sampler import SamplerConfig
from atelier.config.sections.servers import Placed
from atelier.policies.qwen.served.files import encoder_files
from atelier.processes.gpus import VISIBLE, visible_gpus
from atelier.rewards.registry import at_urls
from atelier.rewards.service.protocol import MANAGED_TOKEN_VARIABLE
from atelier.rewards.service.settings import ServiceSettings
from atelier.rewards.service_file import write_services
from atelier.stages.servers.managed import ManagedServer, ServerSpec
from atelier.stages.servers.served_models import sampler_serving
from atelier.stages.servers.specs import Place, judge_spec, reward_spec, vllm_spec
from atelier.stages.servers.waiting import wait_until_ready
from atelier.tracking.run_directory import RunDirectory

# The trainer is the only client, and it sends its micro-batch whatever that is.
_OWN_CLIENT = {"body-mib": 1024, "items": 4096, "megapixels": 1000, "queue": 256}


class RunServers:
    """A context in which what a run has managed is served; nothing where nothing is.

    Entering waits until every server has answered its golden sample right.

    Args:
        folder: of the stage that they are for, which gets their logs and the file that names them;
            default: the train stage's.

    Raises:
        ConfigError: on entering: a server cannot be what the configuration describes.
        Stopped: on entering and by `check`: every replica of a server has failed too often.
    """

    def __init__(self, run: RunDirectory, config: RunConfig, folder: Path | None = None) -> None:
        self._run, self._config = run, config
        self._stage = folder or run.train
        self._token = secrets.token_urlsafe(32)
        self._writing = threading.Lock()
        self._entered = False
        self._servers: dict[str, list[ManagedServer]] = {}  # by name in the services file
        self._placements = Placements((), (), {})

    @property
    def urls(self) -> dict[str, list[str]]:
        """Reward, or `judges.` and a judge's name -> URLs of its servers."""
        return {name: [one.url for one in found] for name, found in self._servers.items()}

    @property
    def environment(self) -> dict[str, str]:
        """What the trainer's environment needs: to be let in, and its own GPUs alone."""
        if not self._servers:
            return {}
        gpus = (*self._placements.trainer, *self._placements.painters)
        return {MANAGED_TOKEN_VARIABLE: self._token} | ({VISIBLE: ",".join(gpus)} if gpus else {})

    def check(self) -> None:
        """Raise Stopped once all replicas of a server are given up: nothing can come any more."""
        for found in self._servers.values():
            problems = [one.problem for one in found if one.problem is not None]
            if len(problems) == len(found):
                raise problems[0]

    def __enter__(self) -> RunServers:
        try:
            if any(managed_servers(self._config)):
                gpus = visible_gpus() if gpus_wanted(self._config) else []
                self._placements = place(self._config, gpus)
            later = {n for n, one in self._managed_rewards().items() if self._asks_managed(one)}
            for name, section in self._vllm_sections().items():
                self._start(name, section)
            self._start_rewards(lambda name: name not in later)
            wait_until_ready(list(self._all()))
            self._start_rewards(lambda name: name in later)
            wait_until_ready(list(self._all()))
            self._entered = True
            self._write()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    # Bringing up ---------------------------------------------------------------------------------

    def _managed_rewards(self) -> dict[str, RewardSection]:
        sections = self._config.rewards.sections()
        return {name: one for name, one in sections.items() if one.placement == "managed"}

    def _asks_managed(self, section: RewardSection) -> bool:
        if not isinstance(section, JudgedSection):
            return False
        return self._config.judges[section.judge].placement == "managed"

    def _start_rewards(self, chosen: Any) -> None:
        for name, section in self._managed_rewards().items():
            if chosen(name):
                self._start(name, section)

    def _vllm_sections(self) -> dict[str, Placed]:
        """What vLLM serves."""
        sampler = self._config.sampler
        sections: dict[str, Placed] = {} if sampler is None else {SAMPLER: sampler}
        sections |= {f"judges.{name}": judge for name, judge in self._config.judges.items()}
        return {name: one for name, one in sections.items() if one.placement == "managed"}

    def _start(self, name: str, section: Placed) -> None:
        found = [self._server(name, section, index) for index in range(section.replicas)]
        self._servers[name] = found
        for server in found:
            server.start()

    def _server(self, name: str, section: Placed, index: int) -> ManagedServer:
        is_reward = name in self._managed_rewards()
        label = f"{self._config.rewards.path_of(name) if is_reward else name}-{index}"
        first = section.server.port
        where = Place(
            label=label,
            base=self._folder / label.replace(".", "-"),
            record=self._run.processes / f"server-{label.replace('.', '-')}.json",
            token=self._token,
            gpus=self._placements.servers.get(label, ()),
            port=first + index if first else 0,
            foreign=self._config.token_variables - self._tokens_of(section),
        )
        return ManagedServer(self._spec(where, name, section), on_change=self._write_once_entered)

    def _tokens_of(self, section: Placed) -> set[str | None]:
        """The variable with the token of the judge that a server asks."""
        if not isinstance(section, JudgedSection):
            return set()
        return {self._config.judges[section.judge].token_env}

    def _spec(self, where: Place, name: str, section: Placed) -> ServerSpec:
        if isinstance(section, SamplerConfig):
            serving = sampler_serving(self._config, section, self._encoder_files)
            return vllm_spec(where, serving, section)
        if isinstance(section, JudgeConfig):
            return judge_spec(where, name.removeprefix("judges."), section)
        assert isinstance(section, RewardSection)
        bounds = {**_OWN_CLIENT, "seconds": section.timeout}.items()
        arguments = [part for key, value in bounds for part in (f"--max-{key}", str(value))]
        return reward_spec(
            where, lambda: self._settings(name), section.server, section.startup, arguments
        )

    @cached_property
    def _encoder_files(self) -> Path:
        """The untrained text encoder, as vLLM reads it; laid out once for all replicas."""
        from atelier.policies.qwen.loading import locate  # diffusers: seconds to import

        return encoder_files(locate(self._config.policy), self._run.sampler / "model")

    def _settings(self, name: str) -> ServiceSettings:
        """What one reward's service needs to know: the reward, and the judge that it asks."""
        section = self._config.rewards.sections()[name]
        judges = {}
        if isinstance(section, JudgedSection):
            judge = self._config.judges[section.judge]
            if judge.placement == "managed":
                urls = judge_urls(self.urls[f"judges.{section.judge}"])
                judge = at_urls(judge, urls, MANAGED_TOKEN_VARIABLE)
            judges[section.judge] = judge
        return ServiceSettings(rewards=self._config.rewards.only(name), judges=judges)

    @property
    def _folder(self) -> Path:
        return self._stage / "services"

    # Watching ------------------------------------------------------------------------------------

    def _stop(self) -> None:
        for server in self._all():
            server.begin_stop()
        for server in self._all():
            server.stop()
        if SAMPLER in self._servers:
            shutil.rmtree(self._run.sampler, ignore_errors=True)

    def _all(self) -> Iterator[ManagedServer]:
        for found in self._servers.values():
            yield from found

    def _write_once_entered(self) -> None:
        """A restart changes pids."""
        if self._entered:
            self._write()

    def _write(self) -> None:
        if not self._servers:
            return
        with self._writing:
            write_services(
                self._stage,
                {
                    name: [self._described(name, one) for one in found]
                    for name, found in self._servers.items()
                },
            )

    def _described(self, name: str, server: ManagedServer) -> Mapping[str, Any]:
        is_judge = name.startswith("judges.")
        return {
            "label": server.spec.label,
            "url": judge_urls([server.url])[0] if is_judge else server.url,
            "pid": server.pid,
            "restarts": server.restarts,
            "log": server.spec.log.relative_to(self._run.root).as_posix(),
            "gpus": list(self._placements.servers.get(server.spec.label, ())),
            **server.identities().get(name.removeprefix("judges."), {}),
        }


def judge_urls(urls: list[str]) -> list[str]:
    """Servers' addresses as OpenAI clients want them."""
    return [f"{url}/v1" for url in urls]
