"""Which rewards exist. A new one: a file with a scorer, a line here, a section in the schema.

Those of `rewards.custom` have no line here: their section names a function or a class."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from atelier.config.access_tokens import bearer_token
from atelier.config.digest import scorer_digest
from atelier.config.sections.judge import JudgeConfig
from atelier.config.sections.rewards import (
    CustomRewardConfig,
    JudgedSection,
    OcrRewardConfig,
    RewardsConfig,
    RewardSection,
)
from atelier.errors import ConfigError
from atelier.rewards.base import Scorer
from atelier.rewards.client.remote import RemoteScorer
from atelier.rewards.reward_set import Reward, RewardSet
from atelier.rewards.scorers.clip import ClipSimilarityScorer, PickScoreScorer
from atelier.rewards.scorers.completions import FormatScorer, LengthScorer
from atelier.rewards.scorers.complex_edit import ComplexEditScorer
from atelier.rewards.scorers.custom import custom_scorer
from atelier.rewards.scorers.edit_yes_no import EditYesNoScorer
from atelier.rewards.scorers.geneval_reward import GenevalScorer
from atelier.rewards.scorers.jpeg import JpegCompressibility, JpegIncompressibility
from atelier.rewards.scorers.judges import SharedJudge, Tracing, shared_judges
from atelier.rewards.scorers.mmmg import MmmgScorer
from atelier.rewards.scorers.ocr import OcrScorer
from atelier.rewards.scorers.scene_edit import SceneEditScorer
from atelier.rewards.scorers.scene_graph import SceneGraphScorer
from atelier.rewards.scorers.unified_reward import UnifiedRewardScorer
from atelier.rewards.scorers.unified_reward_think import UnifiedRewardThinkScorer
from atelier.rewards.scorers.vlm_ocr import VlmOcrScorer
from atelier.rewards.scorers.yes_no import YesNoScorer
from atelier.rewards.service.protocol import MANAGED_TOKEN_VARIABLE, TOKEN_VARIABLE

# Name of the section in `rewards:` -> what makes a scorer of it.
SCORERS: dict[str, Callable[[Any], Scorer]] = {
    "ocr": OcrScorer,
    "jpeg_compressibility": JpegCompressibility,
    "jpeg_incompressibility": JpegIncompressibility,
    "clip_similarity": ClipSimilarityScorer,
    "pick_score": PickScoreScorer,
    "geneval": GenevalScorer,
    "format": FormatScorer,
    "length": LengthScorer,
    "scene_graph": SceneGraphScorer,
    "scene_edit": SceneEditScorer,
}
# Those that ask a judge.
JUDGED: dict[str, Callable[[Any, SharedJudge], Scorer]] = {
    "yes_no": YesNoScorer,
    "vlm_ocr": VlmOcrScorer,
    "unified_reward": UnifiedRewardScorer,
    "unified_reward_think": UnifiedRewardThinkScorer,
    "edit_yes_no": EditYesNoScorer,
    "complex_edit": ComplexEditScorer,
    "mmmg": MmmgScorer,
}


def make_scorers(
    rewards: RewardsConfig,
    judges: Mapping[str, JudgeConfig],
    tracing: Tracing | None = None,
    usage: Path | None = None,
) -> dict[str, tuple[Scorer, str]]:
    """Every reward that is set, as this process would score it, and the digest of what shapes its
    scores. Nothing is loaded and nobody is asked.

    Args:
        judges: with the URLs of their servers, where they are to be asked.
        usage: the file in which it is counted what judges are asked.

    Raises:
        ConfigError: the function of a custom one is not there.
    """
    shared = shared_judges(judges, tracing, usage)
    made: dict[str, tuple[Scorer, str]] = {}
    for name, section in rewards.sections().items():
        if isinstance(section, CustomRewardConfig):
            made[name] = custom_scorer(name, section), scorer_digest(name, section)
        elif isinstance(section, JudgedSection):
            scorer = JUDGED[name](section, shared[section.judge])
            made[name] = scorer, scorer_digest(name, section, judges[section.judge])
        else:
            made[name] = SCORERS[name](section), scorer_digest(name, section)
    return made


def batches_at_a_time(section: RewardSection) -> int:
    """That a process scores. OCR divides a batch among its workers."""
    return 1 if isinstance(section, OcrRewardConfig) else section.workers


def build(
    rewards: RewardsConfig,
    judges: Mapping[str, JudgeConfig] | None = None,
    managed: Mapping[str, Sequence[str]] | None = None,
    tracing: Tracing | None = None,
    usage: Path | None = None,
) -> RewardSet:
    """The rewards that are set in the configuration, each scored where its placement says.

    Args:
        managed: what was started for this run: reward name, or `judges.` and a judge's -> URLs.
        tracing: who is shown questions that this process asks judges.
        usage: the file in which it is counted what this process asks judges.

    Raises:
        ConfigError: none is set, every weight is 0, or a managed one has no service.
    """
    sections = rewards.sections()
    reachable = reachable_judges(judges or {}, managed or {}, asked_by(sections.values()))
    made = []
    for name, (scorer, digest) in make_scorers(rewards, reachable, tracing, usage).items():
        section = sections[name]
        threads = batches_at_a_time(section)
        if section.placement != "in_process":
            urls, token = _services(name, section, managed or {})
            # One more than they score at a time: the next batch is on its way meanwhile.
            threads = threads * len(urls) + 1
            scorer = RemoteScorer(
                scorer,
                urls,
                digest,
                token,
                deadline=rewards.deadline,
                timeout=section.timeout,
                concurrency=threads,
                key=rewards.path_of(name),
            )
        made.append(Reward(scorer, section.weight, threads))
    return RewardSet(made, deadline_seconds=rewards.deadline, by_dataset=True)


def remote_scorers(
    rewards: RewardsConfig, judges: Mapping[str, JudgeConfig]
) -> dict[str, RemoteScorer]:
    """By dotted key, the rewards whose services somebody else started. Nobody is asked yet.

    Raises:
        ConfigError: the function of a custom one is not there.
    """
    found = {}
    for path, section in rewards.by_path().items():
        if section.placement == "remote":
            name = path.rpartition(".")[2]
            scorer, digest = make_scorers(rewards.only(name), judges)[name]
            urls, token = _services(name, section, {})
            found[path] = RemoteScorer(scorer, urls, digest, token, key=path)
    return found


def asked_by(sections: Iterable[RewardSection]) -> set[str]:
    """Names of the judges that this process asks itself for these rewards."""
    return {
        one.judge
        for one in sections
        if isinstance(one, JudgedSection) and one.placement == "in_process"
    }


def reachable_judges(
    judges: Mapping[str, JudgeConfig],
    managed: Mapping[str, Sequence[str]],
    asked: Container[str],
) -> dict[str, JudgeConfig]:
    """The judges with the URLs and the token of those that were started for this run.

    Raises:
        ConfigError: one that is `asked` from here has no server.
    """
    found = dict(judges)
    for name, judge in judges.items():
        if judge.placement != "managed":
            continue
        urls = managed.get(f"judges.{name}", ())
        if urls and os.environ.get(MANAGED_TOKEN_VARIABLE):
            found[name] = at_urls(judge, urls, MANAGED_TOKEN_VARIABLE)
        elif name in asked:
            raise ConfigError(
                f"judges.{name}.placement: the train stage starts a managed judge, and this "
                "process was started without it: use `atelier stage train` or `atelier run`, or "
                f"set judges.{name}.placement to remote"
            )
    return found


def at_urls(judge: JudgeConfig, urls: Sequence[str], token_env: str) -> JudgeConfig:
    """A managed judge as a remote one."""
    update = {"placement": "remote", "urls": list(urls), "replicas": 1, "token_env": token_env}
    return judge.model_copy(update=update)


def _services(
    name: str, section: RewardSection, managed: Mapping[str, Sequence[str]]
) -> tuple[Sequence[str], str | None]:
    """URLs of a reward's services, and the token that they ask for."""
    if section.placement == "remote":
        return section.urls, bearer_token(TOKEN_VARIABLE)
    token = os.environ.get(MANAGED_TOKEN_VARIABLE)
    if not managed.get(name) or token is None:
        raise ConfigError(
            f"rewards.{name}.placement: the train stage starts a managed reward's service, and "
            "this trainer was started without it: use `atelier stage train` or `atelier run`, or "
            f"set rewards.{name}.placement to in_process"
        )
    return managed[name], token
