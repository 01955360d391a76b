"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from atelier.cli.judge_rows import Row, judge_rows
from atelier.config.memory.amounts import memory_amount
from atelier.config.memory.estimate import Memory
from atelier.config.plan import Plan
from atelier.disk import amount

if TYPE_CHECKING:
    from atelier.retention.removals import Removal
    from atelier.retention.survey import SurveyedRun
    from atelier.stages.prompts_here import PromptsHere


def plan_table(plan: Plan, prompts: PromptsHere | None = None) -> str:
    """Every number of a plan with how it comes about.

    Args:
        prompts: what the prompt files hold, where they are on this machine.
    """
    unit = "samples" if plan.images_a_sample > 1 else "images"
    rows: list[Row] = [
        *_prompt_rows(prompts),
        ("prompts a step", f"{plan.prompts_per_step:,}", ""),
        (f"{unit} a step", f"{plan.samples_per_step:,}", f"x {plan.group_size} {unit} a prompt"),
        *_sample_rows(plan),
        ("micro-batches a step", f"{plan.micro_batches:,}", f"of {plan.micro_batch_size} {unit}"),
        ("processes", f"{plan.processes:,}", _sides(plan)),
        (
            "accumulation",
            f"{plan.accumulation:,}",
            f"micro-batches a process and update, {plan.updates_per_step} update(s) a step",
        ),
        ("trained actions", f"{plan.trained_actions:,}", _actions(plan)),
        ("steps", f"{plan.steps:,}", ""),
        ("updates", f"{plan.updates:,}", ""),
        ("images rolled out", f"{plan.images:,}", "at most" if plan.images_a_sample > 1 else ""),
        ("scores", f"{plan.reward_calls:,}", "one an image and reward"),
        (
            "images evaluated",
            f"{plan.evaluation_images:,}",
            f"baseline, {plan.evaluations} periodic, final",
        ),
        *judge_rows(plan),
        *_pass_rows(plan),
        *_memory_rows(plan),
        *((f"runs on: {who}", where, remark) for who, where, remark in plan.placement),
    ]
    return "\n".join(_aligned(rows))


def removal_table(runs: Sequence[SurveyedRun], removals: Sequence[Removal]) -> str:
    """Every run, and what would go of it."""
    rows = [("run", "name", "last used", "state", "size", "would go", "frees")]
    for one in runs:
        own = [removal for removal in removals if removal.run is one]
        rows.append(
            (
                one.run.root.name[:8],
                one.name[:40],
                f"{one.last_used:%Y-%m-%d %H:%M}",
                one.busy or ("finished" if one.finished else "unfinished"),
                amount(one.size),
                ", ".join(removal.what for removal in own),
                amount(sum(removal.freed for removal in own)) if own else "",
            )
        )
    total = sum(removal.freed for removal in removals)
    rows.append(("all", "", "", "", "", "", amount(total)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    right = (4, 6)
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _sample_rows(plan: Plan) -> list[Row]:
    if plan.images_a_sample == 1:
        return []
    return [("images a sample", f"{plan.images_a_sample:,}", "at most, and a judgement of each")]


def _actions(plan: Plan) -> str:
    if not plan.acts_by_tokens:
        return "of each image: steps, or noise levels"
    if plan.painting_passes:
        return "of each image: tokens of its completion at their longest"
    if plan.images_a_sample == 1:
        return "of each image: its tokens"
    return "of each sample: tokens of images, and of answers at their longest"


def _sides(plan: Plan) -> str:
    if not plan.samples_apart:
        return ""
    return f"{plan.shares.sampling} only to sample, {plan.shares.training} only to train"


def _each(plan: Plan, passes: int, ranks: int) -> str:
    """How many of the passes a rank makes, where not every rank makes them."""
    return f"; {passes // ranks:,} a process" if plan.samples_apart else ""


def _pass_rows(plan: Plan) -> list[Row]:
    sampled, replayed = f"{plan.rollout_passes:,}", f"{plan.replay_passes:,}"
    evaluated = f"{plan.evaluation_passes:,}"
    if plan.acts_by_tokens:
        paints, varies = bool(plan.painting_passes), plan.images_a_sample > 1
        row = "" if paints else "; guidance has two rows"
        rows = [
            ("token steps, rollout", sampled, f"one new token of one row each, at most{row}"),
            ("passes, replay", replayed, "over one row with all its tokens, with gradients or not"),
            ("token steps, evaluation", evaluated, "at most" if paints or varies else ""),
        ]
        painted = f"{plan.painting_passes:,}"
        said = "of one image through the frozen transformer, evaluations included"
        return [*rows, ("passes, painting", painted, said)] if paints else rows
    drawn = _each(plan, plan.rollout_passes, plan.shares.sampling)
    learned = _each(plan, plan.replay_passes, plan.shares.training)
    return [
        ("passes, rollout", sampled, f"transformer passes of one image, at most{drawn}"),
        (
            "passes, replay",
            replayed,
            f"the same over trained actions, with gradients or not{learned}",
        ),
        ("passes, evaluation", evaluated, ""),
        *_picture_rows(plan),
    ]


def _picture_rows(plan: Plan) -> list[Row]:
    if not plan.pictures:
        return []
    return [
        ("passes, pictures", f"{plan.pictures:,}", "captioned ones, with gradients (train.sft)")
    ]


def _prompt_rows(prompts: PromptsHere | None) -> list[Row]:
    if prompts is None:
        return []
    counts = {
        "train": ("training prompts", prompts.train, prompts.train_asked),
        "heldout": ("held-out prompts", prompts.heldout, prompts.heldout_asked),
    }
    rows: list[Row] = []
    for split, (name, there, asked) in counts.items():
        remark = f"all there are; asked for: {asked:,}" if there < asked else ""
        if more := prompts.left_out[split]:
            remark = f"{more:,} more are left out (data.{split}_prompts)"
        rows.append((name, f"{there:,}", remark))
    if prompts.dropped:
        why = "they or their partner are held out"
        rows.append(("not trained on", f"{prompts.dropped:,}", why))
    for name, lacking in prompts.without_target.items():
        why = f"of {name} name no text to read in straight quotes: not rewarded by OCR"
        rows.append(("without a text", f"{lacking:,}", why))
    if prompts.unusable:
        why = "held-out prompts that evaluation.suite cannot use"
        rows.append(("not evaluated", f"{prompts.unusable:,}", why))
    if prompts.with_truth is not None:
        why = "training prompts with a picture to learn from (algorithm.ground_truth)"
        rows.append(("ground truth", f"{prompts.with_truth:,}", why))
    if prompts.malformed:
        why = "left out (data.malformed_rows)"
        rows.append(("malformed rows", f"{prompts.malformed:,}", why))
    return rows


def _memory_rows(plan: Plan) -> list[Row]:
    if plan.memory is None:
        return [("memory a process", "unknown", "the model is not on this machine")]
    memory, apart = plan.memory, plan.samples_apart
    rows = _memory_of(plan, memory, "memory a training process" if apart else "memory a process")
    if plan.sampling_memory is not None:
        rows += _memory_of(plan, plan.sampling_memory, "memory a sampling process")
    if memory.painter:
        rows.append(
            ("memory a painting GPU", f"~{memory_amount(memory.painter_peak)}", "at its peak")
        )
        rows += [(f"  {name}", memory_amount(size), "") for name, size in memory.painter.items()]
    return rows


def _memory_of(plan: Plan, memory: Memory, name: str) -> list[Row]:
    """The peak of a process, and what it is of."""
    remark = f"at its peak, in {memory.peak_phase}"
    if not plan.model_is_here:
        remark += "; sizes of the published model; not on this machine"
    rows = [(name, f"~{memory_amount(memory.peak)}", remark)]
    rows += [
        (f"  {name}", memory_amount(size), "held") for name, size in memory.held.items() if size
    ]
    for phase, terms in memory.phases.items():
        rows += [(f"  {name}", memory_amount(size), phase) for name, size in terms.items() if size]
    rows += [
        (f"  {name}", memory_amount(size), "main memory") for name, size in memory.host.items()
    ]
    return rows


def _aligned(rows: Iterable[Row]) -> list[str]:
    """Names left, numbers right, remarks left."""
    rows = list(rows)
    name, value = (max(len(row[column]) for row in rows) for column in (0, 1))
    return [f"{row[0]:<{name}}  {row[1]:>{value}}  {row[2]}".rstrip() for row in rows]
