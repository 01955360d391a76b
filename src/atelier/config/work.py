"""What one sample costs, in actions and in passes through the model.

A denoising policy passes a whole image through its transformer at every step; a pass is that. A
token policy draws one token after the other over the keys and values of those before, and replays
all of them at once: a token step is one new token of one row, a pass is one row with all of its
tokens, and guidance has two rows. What comes before the tokens is read once for each of their
rollouts, and not counted. Where the tokens are what a frozen transformer paints from, its passes
are counted apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from atelier.config.facts.janus import JanusFacts
from atelier.config.facts.known_janus import IMAGE_TOKENS
from atelier.config.facts.read import Facts
from atelier.config.schema import RunConfig


@dataclass(frozen=True)
class Work:
    """Of one sample, at most.

    Attributes:
        actions: that are trained: denoising steps or noise levels, or tokens of images and answers.
        images: that are made and scored.
        rollout: passes that sample it, or token steps.
        replay: passes over all of its actions.
        evaluation: what `rollout` is of an evaluation image.
        painting: passes through a frozen transformer that paints one; evaluation_painting: an
            evaluation image.
    """

    actions: int
    images: int
    rollout: int
    replay: int
    evaluation: int
    painting: int = 0
    evaluation_painting: int = 0


def work(config: RunConfig, facts: Facts | None) -> Work:
    """Of a sample of the configured policy; where its model is unknown, of a published one's."""
    if config.policy.family == "janus":
        tokens = facts.images.tokens if isinstance(facts, JanusFacts) else IMAGE_TOKENS
        return _token_work(config, tokens)
    if config.policy.family == "qwen":
        return _completion_work(config)
    return _denoising_work(config)


def images_a_sample(config: RunConfig) -> int:
    """At most."""
    rollout = config.rollout
    return rollout.introspection.rounds if rollout.kind == "introspect" else 1


def _denoising_work(config: RunConfig) -> Work:
    rollout, evaluation = config.rollout, config.evaluation
    is_ode = rollout.dynamics == "ode"
    steps = rollout.num_inference_steps
    actions = rollout.trained_levels if is_ode else rollout.window.longest(steps)
    # Where a slow copy samples, it also says what it predicts at each level that is trained.
    sampled = steps + (actions if is_ode else 0)
    rows = _rows(rollout.guidance_scale)
    return Work(
        actions=actions,
        images=1,
        rollout=sampled * rows,
        replay=actions * rows,
        evaluation=evaluation.num_inference_steps * _rows(evaluation.guidance_scale),
    )


def _token_work(config: RunConfig, image_tokens: int) -> Work:
    rollout = config.rollout
    images = images_a_sample(config)
    answers = images - 1
    said = answers * rollout.introspection.answer_tokens
    conditional = rollout.tokens.log_prob == "conditional"
    replayed = 1 if conditional else _rows(rollout.guidance_scale)
    drawn = images * image_tokens
    return Work(
        actions=drawn + said,
        images=images,
        rollout=drawn * _rows(rollout.guidance_scale) + said,
        replay=images * replayed + answers,
        evaluation=drawn * _rows(config.evaluation.guidance_scale) + said,
    )


def _completion_work(config: RunConfig) -> Work:
    """Where a policy writes a completion, and a frozen transformer paints."""
    rollout, evaluation = config.rollout, config.evaluation
    tokens = rollout.completion.max_tokens
    return Work(
        actions=tokens,
        images=1,
        rollout=tokens,
        replay=1,
        evaluation=0 if evaluation.completions == "none" else tokens,
        painting=rollout.num_inference_steps * _rows(rollout.guidance_scale),
        evaluation_painting=evaluation.num_inference_steps * _rows(evaluation.guidance_scale),
    )


def _rows(guidance_scale: float) -> int:
    """Classifier-free guidance has an unconditional one besides."""
    return 2 if guidance_scale > 1 else 1
