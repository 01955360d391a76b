"""What the loop asks of a policy, whatever an action is.

Flow policies act by denoising transitions or by noise levels, token policies by tokens: of images,
or of what they write before an image is made of it. All roll out, and replay what they rolled out
through the same kernel with gradients. The loop never looks inside `Rollout.record`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor, nn

from atelier.data.prompts import Prompt
from atelier.policies.grey_levels import GreyLevels


@dataclass(frozen=True)
class Sample:
    """One image to be made: who it is, which group it belongs to, what it shows.

    Attributes:
        index: global sample id of the step; with the seed and the step it keys all noise, so the
            image does not depend on how many ranks there are.
        group_id: position of the prompt in the step: a prompt drawn twice would make two groups.
        round: how often its group was given another prompt.
        pair: the first of two groups whose samples are compared all together.
        truth: whose ground-truth image it is, where it is not the policy's.
    """

    index: int
    group_id: int
    prompt: Prompt
    round: int = 0
    pair: int | None = None
    truth: Prompt | None = None

    @property
    def pool(self) -> int:
        """Samples of one pool are compared with each other."""
        return self.group_id if self.pair is None else self.pair


@dataclass(frozen=True)
class Part:
    """Actions that one forward pass replays, and the segment of a sample that they belong to."""

    actions: slice
    segment: int = 0


@dataclass(frozen=True)
class Drawings:
    """The images that one sample made one after another, and what it thought of them.

    Attributes:
        images: uint8 [B, K, H, W, 3].
        made: [B, K] bool, false where a drawing was accepted before.
        accepted: [B, K - 1] bool, the answers.
        answers: of each sample, in words; as many as were given.
    """

    images: np.ndarray
    made: np.ndarray
    accepted: np.ndarray
    answers: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class Generated:
    """Evaluation images, uint8 [N, H, W, 3], and what each was painted from, in words, where the
    policy writes before it paints."""

    images: np.ndarray
    completions: Sequence[str] | None = None

    @classmethod
    def joined(cls, parts: Sequence[Generated]) -> Generated:
        """Batches of one policy as one, in their order; at least one."""
        images = np.concatenate([one.images for one in parts])
        if any(one.completions is None for one in parts):
            return cls(images)
        return cls(images, [words for one in parts for words in one.completions or ()])


@dataclass(frozen=True)
class Rollout:
    """A micro-batch of B samples with A trained actions each, as the policy sampled them.

    Attributes:
        old_log_probs: [B, A] float32, None where actions have no probability.
        made: `images`, or these on their way.
        record: what replay needs.
        segments: what of the actions is rewarded on its own; all of them are in one.
        longest: the most actions that each segment could have had.
        mask: [B, A] bool, which actions are trained, None for all.
        ended: [B, segments] bool, which segments came to their end, and were not cut off where no
            more actions were allowed; None where none can be, such as images, whose length is set.
        drawings: where samples make several images.
        sources: the images that were edited, as the policy saw them; where it edits.
        completions: what each sample wrote before its image, in words; where the policy writes.
    """

    samples: Sequence[Sample]
    actions: int
    old_log_probs: Tensor | None
    made: np.ndarray | GreyLevels
    record: Mapping[str, Any]
    segments: tuple[slice, ...] | None = None
    longest: tuple[int, ...] | None = None
    mask: Tensor | None = None
    ended: Tensor | None = None
    drawings: Drawings | None = None
    sources: Sequence[Image] | None = None
    completions: Sequence[str] | None = None

    @property
    def images(self) -> np.ndarray:
        """uint8 [B, H, W, 3], what the samples came to; waits until they are here.

        Raises:
            Stopped: an image is no number.
        """
        return self.made.wait() if isinstance(self.made, GreyLevels) else self.made

    def all_segments(self) -> tuple[slice, ...]:
        return self.segments or (slice(0, self.actions),)

    def longest_segment(self, segment: int) -> int:
        """The most actions that it could have had."""
        if self.longest is not None:
            return self.longest[segment]
        actions = self.all_segments()[segment]
        return int(actions.stop - actions.start)

    def trained(self, part: Part) -> Tensor:
        """Which actions of a part are trained [B, n]: 1 or 0, float32."""
        if self.mask is None:
            return torch.ones(len(self.samples), part.actions.stop - part.actions.start)
        return self.mask[:, part.actions].float().cpu()

    def trained_count(self, segment: int) -> Tensor:
        """How many actions of a segment are trained [B], float32."""
        actions = self.all_segments()[segment]
        return self.trained(Part(actions, segment)).sum(1)

    def without_truncated(self) -> Rollout:
        """The same, without training on segments that were cut off."""
        if self.ended is None:
            return self
        own = torch.zeros(len(self.samples), self.actions, dtype=torch.bool)
        for segment, actions in enumerate(self.all_segments()):
            ended = self.ended[:, segment, None].cpu()
            own[:, actions] = (self.trained(Part(actions, segment)) > 0) & ended
        return replace(self, mask=own)


def scored_rollout(
    samples: Sequence[Sample],
    actions: int,
    old_log_probs: Tensor | None,
    record: Mapping[str, Any],
) -> Rollout:
    """A rollout whose images have served their purpose."""
    images = np.empty((len(samples), 0, 0, 3), np.uint8)
    return Rollout(samples, actions, old_log_probs, images, record)


@dataclass(frozen=True)
class Replay:
    """n replayed actions: log-probs [B, n] where they have any, the statistics [B, n, ...] that the
    loss and the KL need, and by what each policy loss is multiplied [B, n], where the form of the
    log-probs asks for it."""

    log_prob: Tensor | None
    statistics: Mapping[str, Tensor] = field(default_factory=dict)
    weight: Tensor | None = None


@dataclass(frozen=True)
class Captioned:
    """A picture to learn from, other than by rewards.

    Attributes:
        prompt: whose ground-truth image it is.
        caption: what is said of it, nothing being "".
        key: of all that is drawn for it.
    """

    prompt: Prompt
    caption: str
    key: int


@runtime_checkable
class LearnsFromPictures(Protocol):
    """A policy that also learns from captioned pictures, as those that denoise do."""

    def pixels(self, one: Captioned) -> np.ndarray:
        """The picture as the policy learns from it, uint8 [side, side, 3]. Reads files and computes
        nothing on a device, so that another thread may do it ahead.

        Raises:
            DataError: it is not there any more, or damaged.
        """
        ...

    def picture_losses(
        self, module: nn.Module, batch: Sequence[Captioned], pixels: np.ndarray
    ) -> Tensor:
        """A supervised loss of each picture [B], float32, with gradients. pixels: of each, uint8
        [B, side, side, 3]."""
        ...


@runtime_checkable
class DrawsAhead(Protocol):
    """A policy that can draw what rollouts begin with while an earlier one goes on."""

    def expect_rollouts(self, batches: Sequence[Sequence[Sample]]) -> None:
        """Micro-batches of the step that has begun, in the order they are rolled out in. They may
        still come otherwise."""
        ...


class Policy(Protocol):
    """A model that can be trained by the loop."""

    module: nn.Module
    """What is trained. The engine may wrap it; forward passes go through the wrapped module."""

    kl_forms: frozenset[str]
    """Names of algorithms.kl.KL_FORMS whose statistics replay supplies."""

    def begin_step(self, step: int) -> Mapping[str, float]:
        """Fix what all samples of a step share (the window); return it as metrics."""
        ...

    def rollout(self, module: nn.Module, samples: Sequence[Sample]) -> Rollout:
        """Sample images without gradients."""
        ...

    def parts(self, rollout: Rollout) -> Iterator[Part]:
        """Split the A actions, in their order, into what one forward pass replays. Of a token
        policy that is a whole segment: its ratio may be one of the sequence."""
        ...

    def replay(
        self, module: nn.Module, rollout: Rollout, part: Part, with_reference: bool
    ) -> Replay:
        """What the loss needs of the stored actions, with gradients, by the rollout's kernel."""
        ...

    def pack(self, rollout: Rollout) -> Mapping[str, Tensor]:
        """What of a scored rollout cannot be made anew, to be kept in a checkpoint."""
        ...

    def unpack(self, samples: Sequence[Sample], tensors: Mapping[str, Tensor]) -> Rollout:
        """The rollout that `pack` took apart, without its images; its replay is the same bits."""
        ...

    def generate(
        self, module: nn.Module, prompts: Sequence[Prompt], noise_keys: Sequence[int]
    ) -> Generated:
        """Evaluation images, one a prompt and key, deterministic given the keys. A prompt may come
        several times, with other keys; an edit's source image is `data.ground_truth.source_image`
        of it."""
        ...

    def trainable(self) -> dict[str, nn.Parameter]:
        """The trained parameters of `module` by name, in a stable order."""
        ...

    def fresh_module(self) -> nn.Module:
        """A module of the same structure without the trained values, to check a save against."""
        ...

    def prepare_reference(self) -> None:
        """Keep what the policy is now as the reference; called before anything is loaded."""
        ...

    def close(self) -> None:
        """End the threads it has, if any; called by who loaded it, when it makes nothing more."""
        ...
