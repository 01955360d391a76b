"""Draw, judge, draw again: images 1 ... K and the answers between them. Source: Janus-Pro-R1.

    image 1, answer 1, image 2, ..., answer K - 1, image K

The first answer that begins with Yes accepts its image. Behind it v1 and v2 draw nothing more, and
train on the accepted image once more in the place of each later one: v1 as a first drawing, v2
behind the answers. v3 always goes on, and trains on what was drawn.

Deviations from the original: a row has no padding inside, so that what it draws does not depend on
how long the answers of others are; what was accepted is not drawn again to be thrown away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from atelier.config.sections.tokens import IntrospectionConfig
from atelier.data.keys import key
from atelier.data.prompts import Prompt
from atelier.policies.base import Drawings, Rollout, Sample
from atelier.policies.janus.conversation import Context
from atelier.policies.janus.log_probs import Sampler
from atelier.policies.janus.module import Segment
from atelier.policies.janus.parts import Parts
from atelier.policies.janus.rows import Drawn, Picture, Rows, Seen, stack
from atelier.policies.language.log_probs import TextForm


@dataclass
class Story:
    """What one sample drew and said so far.

    Attributes:
        codes: [N] of each image as it was drawn.
        again: [N] the same images coded from their pixels, which is what comes before later ones.
        seen: [N, D] the images that were asked about, as they are looked at.
        pixels: uint8 [H, W, 3] each.
        answers: tokens with EOS, where the answer came to one.
        accepted: the answers.
    """

    prompt: Prompt
    codes: list[Tensor] = field(default_factory=list)
    again: list[Tensor] = field(default_factory=list)
    seen: list[Tensor] = field(default_factory=list)
    pixels: list[np.ndarray] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)
    log_probs: list[Tensor] = field(default_factory=list)

    @property
    def end(self) -> int | None:
        """Which image was accepted, None for none."""
        return self.accepted.index(True) if True in self.accepted else None

    @property
    def final(self) -> np.ndarray:
        """The image it came to."""
        return self.pixels[-1 if self.end is None else self.end]


class Introspection:
    """Rollouts of several images.

    Args:
        yes, no: tokens that an answer may begin with.
    """

    def __init__(self, parts: Parts, config: IntrospectionConfig, yes: int, no: int) -> None:
        self._parts = parts
        self._config = config
        self._yes, self._no = yes, no
        first = (yes, no) if config.restricted_first_token else ()
        self._text_form = TextForm(config.answer_temperature, first)

    # Sampling ------------------------------------------------------------------------------------

    @torch.no_grad()
    def rollout(self, module: nn.Module, samples: Sequence[Sample], keys: Sequence[int]) -> Rollout:
        stories = self._tell([one.prompt for one in samples], keys, self._parts.sampler)
        drawings = _drawings(stories, self._config.rounds)
        words = [[self._parts.conversation.words(a) for a in one.answers] for one in stories]
        return self._rollout(samples, stories, replace(drawings, answers=words))

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[Prompt], keys: Sequence[int], sampler: Sampler
    ) -> np.ndarray:
        """The images that were accepted, or the last ones: uint8 [B, H, W, 3]."""
        return np.stack([one.final for one in self._tell(prompts, keys, sampler)])

    def _tell(
        self, prompts: Sequence[Prompt], keys: Sequence[int], sampler: Sampler
    ) -> list[Story]:
        stories = [Story(prompt) for prompt in prompts]
        for round in range(self._config.rounds):
            going = [place for place, one in enumerate(stories) if self._goes_on(one)]
            if not going:
                break
            own = [key("image", keys[place], round) if round else keys[place] for place in going]
            self._draw([stories[place] for place in going], own, sampler)
            if round < self._config.rounds - 1:
                own = [key("answer", keys[place], round) for place in going]
                self._answer([stories[place] for place in going], own)
        return stories

    def _goes_on(self, story: Story) -> bool:
        return self._config.version == "v3" or story.end is None

    def _draw(self, stories: Sequence[Story], keys: Sequence[int], sampler: Sampler) -> None:
        parts = self._parts
        contexts = [self._before_image(one, len(one.codes)) for one in stories]
        with parts.autocast():
            tokens = parts.generation.images(self._rows(contexts), keys, sampler, parts.form)
        images = parts.pixels.decode(tokens.codes)
        again = parts.pixels.encode(list(images))
        for place, one in enumerate(stories):
            one.codes.append(tokens.codes[place])
            one.log_probs.append(tokens.log_probs[place])
            one.pixels.append(images[place])
            one.again.append(again[place])

    def _look(self, image: np.ndarray) -> Tensor:
        """By itself: then a stored story is seen in the same bits, whatever it was drawn with."""
        return self._parts.pixels.look([image])[0]

    def _answer(self, stories: Sequence[Story], keys: Sequence[int]) -> None:
        parts, config, conversation = self._parts, self._config, self._parts.conversation
        for one in stories:
            one.seen.append(self._look(one.pixels[-1]))
        contexts = [self._before_answer(one, len(one.answers)) for one in stories]
        with parts.autocast():
            text = parts.generation.text(
                self._rows(contexts),
                keys,
                config.answer_tokens,
                conversation.eos,
                conversation.pad,
                Sampler(temperature=config.answer_temperature),
                (self._yes, self._no),
                self._text_form,
            )
        tokens, lengths = text.tokens.tolist(), text.mask.sum(dim=1).tolist()
        for place, (one, length) in enumerate(zip(stories, lengths, strict=True)):
            one.answers.append(tokens[place][:length])
            one.log_probs.append(text.log_probs[place, :length])
            one.accepted.append(one.answers[-1][0] == self._yes)

    # What comes before ---------------------------------------------------------------------------

    def _before_image(self, story: Story, number: int) -> tuple[Context, list[Picture]]:
        """Of the image `number`, from 0 on."""
        answers = [self._without_end(one) for one in story.answers[:number]]
        context = self._parts.conversation.redrawing(story.prompt.text, *answers)
        return context, [Drawn(codes) for codes in story.again[: len(answers)]]

    def _before_answer(self, story: Story, number: int) -> tuple[Context, list[Picture]]:
        """Of the answer `number`: its image is seen, the earlier ones are as drawn."""
        answers = [self._without_end(one) for one in story.answers[:number]]
        context = self._parts.conversation.judging(story.prompt.text, *answers)
        earlier: list[Picture] = [Drawn(codes) for codes in story.again[:number]]
        return context, [*earlier, Seen(story.seen[number])]

    def _without_end(self, answer: Sequence[int]) -> list[int]:
        return [one for one in answer if one != self._parts.conversation.eos]

    def _rows(self, contexts: Sequence[tuple[Context, list[Picture]]]) -> Rows:
        """An answer's EOS is not attended to by what comes after it."""
        conversation = self._parts.conversation
        hidden = (conversation.eos,)
        made = [context for context, _ in contexts], [pictures for _, pictures in contexts]
        return stack(*made, conversation.pad, hidden).to(self._parts.device)

    # What is trained -----------------------------------------------------------------------------

    def _rollout(
        self, samples: Sequence[Sample], stories: Sequence[Story], drawings: Drawings | None
    ) -> Rollout:
        """Segments of all stories: image, answer, image, ..., image."""
        segments, masks, old = [], [], []
        for round in range(self._config.rounds):
            segment, log_probs = self._image_segment(stories, round)
            segments.append(segment)
            old.append(log_probs)
            masks.append(torch.ones_like(log_probs, dtype=torch.bool))
            if round < self._config.rounds - 1:
                segment, log_probs, mask = self._answer_segment(stories, round)
                segments.append(segment)
                old.append(log_probs)
                masks.append(mask)
        ends = np.cumsum([one.targets.shape[1] for one in segments]).tolist()
        slices = tuple(slice(a, b) for a, b in zip([0, *ends], ends, strict=False))
        image, answer = self._parts.module.image_tokens, self._config.answer_tokens
        final = np.stack([one.final for one in stories])
        return Rollout(
            samples,
            ends[-1],
            torch.cat(old, dim=1),
            final,
            {"segments": segments, "stories": stories},
            segments=slices,
            longest=tuple(answer if at % 2 else image for at in range(len(slices))),
            mask=torch.cat(masks, dim=1),
            ended=self._ended(stories),
            drawings=drawings,
        )

    def _image_segment(self, stories: Sequence[Story], number: int) -> tuple[Segment, Tensor]:
        """The image `number` of every story, or what is trained in its place; log-probs are NaN
        where they are to be computed anew."""
        contexts, codes, log_probs = [], [], []
        for one in stories:
            shown = number if self._config.version == "v3" else _at_most(number, one.end)
            before = shown if self._config.version == "v1" else number
            contexts.append(self._before_image(one, min(before, len(one.answers))))
            codes.append(one.codes[shown])
            drawn = one.log_probs[2 * shown]
            # Behind other words than it was drawn behind, its probability is another one.
            log_probs.append(drawn if before == shown else torch.full_like(drawn, torch.nan))
        segment = Segment(
            self._rows(contexts), torch.stack(codes), self._parts.form, self._is_constant
        )
        return segment, torch.stack(log_probs)

    def _answer_segment(
        self, stories: Sequence[Story], number: int
    ) -> tuple[Segment, Tensor, Tensor]:
        """The answer `number` of every story; one that was not asked for is not trained."""
        pad, eos = self._parts.conversation.pad, self._parts.conversation.eos
        said = [one.answers[number] if number < len(one.answers) else [] for one in stories]
        length = max(1, *(len(one) for one in said))
        own = torch.tensor([[at < len(one) for at in range(length)] for one in said])
        # Some answer, where there is none: that of a token that cannot be would not be a number.
        answers = [one or [self._no] for one in said]
        tokens = torch.tensor([one + [pad] * (length - len(one)) for one in answers])
        if not self._config.train_end:
            own = own & (tokens != eos)
        log_probs = torch.zeros(tokens.shape, device=self._parts.device)
        for row, (one, answer) in enumerate(zip(stories, said, strict=True)):
            if answer:
                log_probs[row, : len(answer)] = one.log_probs[2 * number + 1]
        contexts = [self._before_answer(one, min(number, len(one.seen) - 1)) for one in stories]
        segment = Segment(
            self._rows(contexts), tokens.to(self._parts.device), self._text_form, self._is_constant
        )
        return segment, log_probs, own.to(self._parts.device)

    def _ended(self, stories: Sequence[Story]) -> Tensor:
        """Which segments came to their end: answers with an EOS, and all images [B, 2 K - 1]."""
        ended = torch.ones(len(stories), 2 * self._config.rounds - 1, dtype=torch.bool)
        for row, one in enumerate(stories):
            for number, answer in enumerate(one.answers):
                ended[row, 2 * number + 1] = answer[-1] == self._parts.conversation.eos
        return ended

    @property
    def _is_constant(self) -> bool:
        return self._config.constant_context

    # Storing -------------------------------------------------------------------------------------

    def pack(self, rollout: Rollout) -> Mapping[str, Tensor]:
        """Codes, images, answers and log-probs of every story; what was seen is seen again."""
        stories: Sequence[Story] = rollout.record["stories"]
        rounds, limit = self._config.rounds, self._config.answer_tokens
        count, tokens = len(stories), self._parts.module.image_tokens
        codes, again = torch.zeros(2, count, rounds, tokens, dtype=torch.long)
        answers = torch.full((count, rounds - 1, limit), -1)
        said = torch.zeros(count, 2 * rounds - 1, max(tokens, limit))
        for row, one in enumerate(stories):
            codes[row, : len(one.codes)] = torch.stack(one.codes).cpu()
            again[row, : len(one.again)] = torch.stack(one.again).cpu()
            for number, answer in enumerate(one.answers):
                answers[row, number, : len(answer)] = torch.tensor(answer)
            for number, log_probs in enumerate(one.log_probs):
                said[row, number, : len(log_probs)] = log_probs.cpu()
        images = torch.from_numpy(_drawings(stories, rounds).images)
        packed = {"codes": codes, "again": again, "answers": answers, "said": said}
        packed["images"] = images
        packed["made"] = torch.tensor([len(one.codes) for one in stories])
        if rollout.old_log_probs is not None:
            packed["old_log_probs"] = rollout.old_log_probs
        return packed

    def unpack(self, samples: Sequence[Sample], tensors: Mapping[str, Tensor]) -> Rollout:
        stories = [
            self._unpacked(sample.prompt, row, tensors) for row, sample in enumerate(samples)
        ]
        rollout = self._rollout(samples, stories, None)
        return replace(rollout, old_log_probs=tensors["old_log_probs"])

    def _unpacked(self, prompt: Prompt, row: int, tensors: Mapping[str, Tensor]) -> Story:
        made, story = int(tensors["made"][row]), Story(prompt)
        story.codes = list(tensors["codes"][row, :made].to(self._parts.device))
        story.again = list(tensors["again"][row, :made].to(self._parts.device))
        story.pixels = list(tensors["images"][row, :made].cpu().numpy())
        for answer in tensors["answers"][row]:
            tokens = answer[answer >= 0].tolist()
            if tokens:
                story.answers.append(tokens)
                story.accepted.append(tokens[0] == self._yes)
        story.seen = [self._look(image) for image in story.pixels[: len(story.answers)]]
        lengths = []
        for number in range(made):
            lengths.append(self._parts.module.image_tokens)
            lengths += [len(one) for one in story.answers[number : number + 1]]
        said = tensors["said"][row].to(self._parts.device)
        story.log_probs = [said[at, :length] for at, length in enumerate(lengths)]
        return story


def _at_most(number: int, end: int | None) -> int:
    return number if end is None else min(number, end)


def _drawings(stories: Sequence[Story], rounds: int) -> Drawings:
    """Images that were not made are black; answers that were not given are No."""
    height, width = stories[0].pixels[0].shape[:2]
    images = np.zeros((len(stories), rounds, height, width, 3), np.uint8)
    made = np.zeros((len(stories), rounds), bool)
    accepted = np.zeros((len(stories), rounds - 1), bool)
    for row, one in enumerate(stories):
        images[row, : len(one.pixels)] = np.stack(one.pixels)
        made[row, : len(one.pixels)] = True
        accepted[row, : len(one.accepted)] = one.accepted
    return Drawings(images, made, accepted)
