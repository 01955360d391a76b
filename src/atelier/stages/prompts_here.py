"""A look at a run's prompt files before it starts: what `prepare` would refuse, and how many."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atelier.config.paths import from_root, is_file, repository_root
from atelier.config.plan import Plan, plan
from atelier.config.prompt_files import named_files
from atelier.config.schema import RunConfig
from atelier.config.sections.data import DataConfig
from atelier.config.sft_rules import picture_files
from atelier.errors import DataError, PlanError
from atelier.stages.readable import require_texts

if TYPE_CHECKING:
    from atelier.data.prompts import Prompt
    from atelier.data.splits import Splits


@dataclass(frozen=True)
class PromptsHere:
    """How many prompts a run will have, and how many it asks for at most.

    Attributes:
        left_out: how many more the files have, of `train` and `heldout`.
        dropped: training prompts that are held out, or whose partner is.
        malformed: rows that are left out because they cannot be read.
        unusable: held-out prompts that the suite cannot use, such as those without test points.
        without_target: by data set of a mixture, training prompts that name no text for the rewards
            that read one.
        with_truth: training prompts that have a picture of what they ask for; None where nothing is
            learned from such (algorithm.ground_truth).
    """

    train: int
    train_asked: int
    heldout: int
    heldout_asked: int
    left_out: Mapping[str, int]
    dropped: int
    malformed: int
    unusable: int
    without_target: Mapping[str, int]
    with_truth: int | None


def prompts_here(config: RunConfig) -> PromptsHere | None:
    """Read the prompt files as `prepare` will.

    None where scenes are generated, exactly as many as asked for, and where a file is not on this
    machine yet: DVC fetches it when the run starts.

    Raises:
        DataError: a file is malformed, or leaves no prompt to train on or to hold out.
        ConfigError: a data set of a mixture is rewarded by what is not set.
        PlanError: they are fewer than a step takes, or the first level of a curriculum has, which
            training would refuse; or there are not as many scenes as asked for; or none has a
            picture to learn from; or the suite can use none that is held out; or fewer captioned
            pictures than an update takes.
    """
    _require_pictures(config)
    data = config.data
    files = [from_root(one.path) for one in named_files(data)]
    if not all(map(is_file, files)):
        return None
    if data.source == "scenes" and data.heldout_path is None:
        try:
            splits = _splits(data)
        except DataError as error:
            raise PlanError(f"this plan cannot work:\n  {error}") from error
        _require_level(config, splits.train)
        return None
    _require_names(config)
    splits = _splits(data)
    _require_mixes(config, splits.train)
    require_texts(config, {"training prompt": splits.train, "held-out prompt": splits.heldout})
    step, there = config.train.prompts_per_step, len(splits.train)
    if step > there:
        raise PlanError(
            "this plan cannot work:\n  train.prompts_per_step: "
            f"{step} is more than the {there} training prompts of {data.path or data.source}"
        )
    _require_level(config, splits.train)
    return PromptsHere(
        train=there,
        train_asked=data.most_train_prompts,
        heldout=len(splits.heldout),
        heldout_asked=data.most_heldout_prompts,
        left_out=splits.left_out,
        dropped=splits.dropped,
        malformed=len(splits.malformed),
        unusable=len(splits.heldout) - _usable(config, splits.heldout),
        without_target=_without_target(data, splits.train),
        with_truth=_with_truth(config, splits.train),
    )


def planned(config: RunConfig) -> tuple[Plan, PromptsHere | None]:
    """The plan of a run with as many held-out prompts as there are, and what its prompt files hold.

    Raises:
        DataError, ConfigError, PlanError: as `plan` and `prompts_here`.
    """
    made, prompts = plan(config), prompts_here(config)
    if prompts is None:
        return made, None
    return plan(config, heldout=prompts.heldout - prompts.unusable), prompts


def _require_pictures(config: RunConfig) -> None:
    """An update finds as many captioned pictures as it takes, where their files are here."""
    from atelier.data.captioned import count_pictures, require_enough

    pictures, sft = config.data.sft, config.train.sft
    files = [from_root(path) for _, path in picture_files(pictures)]
    if not sft.enabled or pictures.source != "files" or not all(map(is_file, files)):
        return
    try:
        require_enough(count_pictures(pictures), pictures, sft.pictures_per_update)
    except PlanError as error:
        raise PlanError(f"this plan cannot work:\n  {error}") from error


def _without_target(data: DataConfig, prompts: Sequence[Prompt]) -> dict[str, int]:
    from atelier.data.mixtures import without_target
    from atelier.data.prepare import mixture_of

    with contextlib.chdir(repository_root()):
        mixture = mixture_of(data)
    found = {} if mixture is None else without_target(mixture, prompts)
    return {name: count for name, count in found.items() if count}


def _usable(config: RunConfig, heldout: Sequence[Prompt]) -> int:
    """How many held-out prompts the suite can use."""
    from atelier.evaluation.requests import kind_for, usable

    found = len(usable(heldout, config.evaluation))
    if not found:
        raise PlanError(
            f"this plan cannot work:\n  evaluation.suite: none of the {len(heldout)} held-out "
            f"prompts is {kind_for(config.evaluation)}, which {config.evaluation.suite} needs"
        )
    return found


def _with_truth(config: RunConfig, prompts: Sequence[Prompt]) -> int | None:
    from atelier.data.ground_truth import has_ground_truth

    if not config.algorithm.ground_truth.enabled:
        return None
    found = sum(map(has_ground_truth, prompts))
    if not found:
        raise PlanError(
            "this plan cannot work:\n  algorithm.ground_truth.enabled: none of the "
            f"{len(prompts)} training prompts of {config.data.path or config.data.source} has a "
            "picture of what it asks for; add them to the file, or set it to false"
        )
    return found


def _splits(data: DataConfig) -> Splits:
    from atelier.data.prepare import tables

    with contextlib.chdir(repository_root()):  # a configuration's paths are relative to it
        return tables(data)[0]


def _require_names(config: RunConfig) -> None:
    """A mixture's file names no reward that there is not: line by line, before its prompts are
    read."""
    from atelier.data.readers.deepgen import read_mixture

    known = {*config.rewards.built_in(), *config.rewards.custom}
    for one in named_files(config.data):
        if one.source == "deepgen" and one.part != "scores":
            read_mixture(from_root(one.path), known)


def _require_mixes(config: RunConfig, prompts: Sequence[Prompt]) -> None:
    from atelier.rewards.mixes import require_mixes

    require_mixes((one.metadata for one in prompts), config.rewards.sections())


def _require_level(config: RunConfig, prompts: Sequence[Prompt]) -> None:
    """The first level of a curriculum is the one that has fewest prompts."""
    from atelier.data.curriculum import curriculum_indices

    train, curriculum = config.train, config.data.curriculum
    if curriculum.scores is None:
        return
    try:
        curriculum_indices(
            prompts,
            1,
            train.steps,
            curriculum.levels,
            train.prompts_per_step,
            train.seed,
            train.resample_rounds,
        )
    except PlanError as error:
        raise PlanError(f"this plan cannot work:\n  {error}") from error


def prompt_warnings(config: RunConfig, found: PromptsHere) -> Iterator[str]:
    """Evaluations that ask for more prompts than the file has, which is fewer than asked for; and
    that measure otherwise than the file says."""
    yield from _unlike_evaluations(config)
    there = found.heldout - found.unusable
    if there >= found.heldout_asked:
        return
    for name in ("prompts", "periodic_prompts"):
        if (asked := getattr(config.evaluation, name)) > there:
            of_use = f" that {config.evaluation.suite} can use" if found.unusable else ""
            yield f"evaluation.{name}: {asked}, but only {there} prompts{of_use} are held out"


def _unlike_evaluations(config: RunConfig) -> Iterator[str]:
    from atelier.data.readers.deepgen_eval import differences, read_datasets

    for one in named_files(config.data):
        if one.source == "deepgen_eval" and one.part == "heldout":
            datasets = read_datasets(from_root(one.path))
            for key, text in differences(datasets, config.evaluation):
                yield f"evaluation.{key}: {text}"
