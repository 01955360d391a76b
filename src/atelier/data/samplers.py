"""Which prompts a step trains on: pure functions of step and seed, so a resume needs no state.

Deviation from Flow-GRPO's k-repeat sampler, which draws afresh each batch and so repeats prompts:
here every prompt is met once before any is met again.
"""

import random
from collections.abc import Mapping, Sequence

import numpy as np

from atelier.config.sections.datasets import SamplingMode
from atelier.data.keys import key
from atelier.data.paired_epochs import draw_others, draw_rows
from atelier.data.prompts import Prompt
from atelier.data.rows import rows_of
from atelier.errors import PlanError

SHARE = "mixture_share"  # in the metadata of a prompt of a mixture: see `sampling_shares`


def prompt_indices(num_prompts: int, step: int, prompts_per_step: int, seed: int) -> list[int]:
    """Indices in [0, num_prompts) of the prompts of a step, all different.

    An epoch is a permutation keyed by (seed, epoch), cut into whole steps: what is left over at its
    end (fewer than `prompts_per_step`) is skipped in that epoch, or a step could hold one twice.

    Raises:
        PlanError: more prompts a step than there are prompts, or a number out of range.
    """
    _check_plan(num_prompts, step, prompts_per_step)
    epoch, position = divmod(step, num_prompts // prompts_per_step)
    order = list(range(num_prompts))
    random.Random(key("epoch", seed, epoch)).shuffle(order)
    start = position * prompts_per_step
    return order[start : start + prompts_per_step]


def other_indices(
    num_prompts: int, step: int, prompts_per_step: int, seed: int, round: int
) -> list[int]:
    """As many indices again, for round 1, 2, ... of a step: none that an earlier round has.

    Raises:
        PlanError: as `prompt_indices`; or there are not enough prompts for so many rounds.
    """
    used = set(prompt_indices(num_prompts, step, prompts_per_step, seed))
    others = [index for index in range(num_prompts) if index not in used]
    random.Random(key("other prompts", seed, step)).shuffle(others)
    end = round * prompts_per_step
    if end > len(others):
        raise _too_few_others(round, prompts_per_step + end, num_prompts)
    return others[end - prompts_per_step : end]


def row_indices(
    prompts: Sequence[Prompt], step: int, prompts_per_step: int, seed: int, round: int = 0
) -> list[int]:
    """Places of the prompts of a step (counted from 1), row after row, all different.

    Those of a mixture are drawn by their shares (`weighted_indices`). Without pairs, they are those
    of `prompt_indices` and, for round 1, 2, ..., of `other_indices`. With pairs, a row is a pair or
    two single prompts, coupled anew each epoch, and an epoch holds every one: nothing is left out,
    unlike in the original, which never reached half of its pairs.

    Raises:
        PlanError: as those two; or an odd number of prompts a step, with pairs.
        DataError: the two prompts of a pair are not neighbours.
    """
    if prompts and SHARE in prompts[0].metadata:
        shares = [float(one.metadata[SHARE]) for one in prompts]
        return weighted_indices(shares, step, prompts_per_step, seed, round)
    table = rows_of(prompts)
    if all(len(row) == 1 for row in table):
        if round:
            return other_indices(len(prompts), step, prompts_per_step, seed, round)
        return prompt_indices(len(prompts), step, prompts_per_step, seed)
    _check_plan(len(prompts), step, prompts_per_step)
    if prompts_per_step % 2:
        raise PlanError(
            f"train.prompts_per_step {prompts_per_step}: must be even, because training prompts "
            "come in pairs"
        )
    rows_per_step = prompts_per_step // 2
    if round:
        rows = draw_others(table, step, rows_per_step, seed, round)
    else:
        rows = draw_rows(table, step, rows_per_step, seed).rows
    return [place for row in rows for place in row]


def weighted_indices(
    shares: Sequence[float], step: int, prompts_per_step: int, seed: int, round: int = 0
) -> list[int]:
    """Indices of the prompts of a step, drawn by their shares, all different; for round 1, 2, ...
    as many again, none that an earlier round of the step has.

    Each step is a weighted draw without replacement of its own (the largest log(share) + Gumbel
    noise win), so that data sets are met in proportion over steps, and no epoch repeats another.
    Where all shares are equal, epochs are kept: every prompt is met once before any again.

    Args:
        shares: as `sampling_shares`, one a prompt.

    Raises:
        PlanError: as `prompt_indices` and `other_indices`.
    """
    _check_plan(len(shares), step, prompts_per_step)
    if all(share == shares[0] for share in shares):
        if round:
            return other_indices(len(shares), step, prompts_per_step, seed, round)
        return prompt_indices(len(shares), step, prompts_per_step, seed)
    end = (round + 1) * prompts_per_step
    if end > len(shares):
        raise _too_few_others(round, end, len(shares))
    noise = np.random.default_rng(key("mixture", seed, step)).gumbel(size=len(shares))
    order = np.argsort(-(np.log(shares) + noise), kind="stable")
    return [int(index) for index in order[end - prompts_per_step : end]]


def sampling_shares(
    dataset_ids: Sequence[int], weights: Mapping[int, float], mode: SamplingMode
) -> list[float]:
    """How often each prompt is drawn, relative to the others; they need not sum to anything.

    A prompt's share is the weight w of its data set (sample_proportional: 2 means twice as often as
    uniform), or w / size of the data set (weight_only: data sets with equal weights are met equally
    often). Source: DeepGen-RL; unlike the original, equal weights do not switch
    weight_only off.

    Args:
        dataset_ids: the data set of each prompt.
        weights: sample_weight by data set, above 0.

    Raises:
        PlanError: an unknown mode, or a data set without a positive weight.
    """
    if mode not in ("sample_proportional", "weight_only"):
        raise PlanError(f"sampling_mode {mode!r}: sample_proportional or weight_only")
    ids, where, sizes = np.unique(np.asarray(dataset_ids), return_inverse=True, return_counts=True)
    unweighted = [int(i) for i in ids if not weights.get(int(i), 0) > 0]
    if unweighted:
        raise PlanError(f"sample_weight of dataset {unweighted}: a positive weight is needed")
    by_dataset = np.asarray([weights[int(i)] for i in ids], np.float64)
    if mode == "weight_only":
        by_dataset = by_dataset / sizes
    return [float(share) for share in by_dataset[where]]


def _too_few_others(round: int, needed: int, there: int) -> PlanError:
    return PlanError(
        f"train.resample_rounds {round}: a step may need {needed} prompts, and there are {there}: "
        "lower it or train.prompts_per_step, or have more prompts"
    )


def _check_plan(num_prompts: int, step: int, prompts_per_step: int) -> None:
    if step < 0 or prompts_per_step < 1:
        raise PlanError(
            f"step {step}, train.prompts_per_step {prompts_per_step}: steps count from 0 and hold "
            "at least one prompt"
        )
    if prompts_per_step > num_prompts:
        raise PlanError(
            f"train.prompts_per_step {prompts_per_step} exceeds the {num_prompts} training "
            "prompts: lower it or raise data.train_prompts"
        )
