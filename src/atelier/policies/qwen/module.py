"""What is trained: a Qwen2.5-VL whose one forward pass gives log-probs of completions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor, nn
from transformers import Qwen2_5_VLForConditionalGeneration

from atelier.policies.language.log_probs import DrawnForm, TextForm, text_log_probs
from atelier.policies.language.module import LanguageModule
from atelier.policies.language.recomputation import in_chunks, recomputing
from atelier.policies.qwen.inputs import Inputs

Form = TextForm | DrawnForm


@dataclass(frozen=True)
class Segment:
    """Completions of B prompts, and the form of their log-probs.

    Attributes:
        inputs: the prompts, padded on the left.
        targets: [B, N] int64 tokens, filled up on the right.
    """

    inputs: Inputs
    targets: Tensor
    form: Form


class QwenModule(LanguageModule):
    """A Qwen2_5_VLForConditionalGeneration: the text encoder of an image's pipeline."""

    held_as: ClassVar[str] = "encoder"
    encoder: Qwen2_5_VLForConditionalGeneration

    def frozen_parts(self) -> dict[str, nn.Module]:
        """What sees source images: gradients of text move it little, and what it shows is what the
        frozen transformer was trained beside."""
        return {"visual": self.encoder.model.visual}

    def forward(self, segment: Segment) -> Tensor:
        """Teacher-forced log-probs [B, N] of a segment's targets, float32.

        The token at place t is predicted at place t - 1, the first one by the end of the prompt.
        """
        targets = segment.targets
        inputs = segment.inputs.followed_by(targets[:, :-1])
        arguments = inputs.arguments()
        with recomputing(self.language_model, self._checkpointing):
            output = self.encoder.model(
                **arguments, position_ids=self._positions(inputs), use_cache=False
            )
        hidden = output.last_hidden_state[:, -targets.shape[1] :]
        chunk = partial(_chunk, self.encoder.lm_head, hidden, targets, segment.form)
        return in_chunks(chunk, targets.shape[1], self._logits_chunk)

    def _positions(self, inputs: Inputs) -> Tensor:
        """[3, B, L] rotary positions, counted from a row's first token on, as `generate` does: left
        to itself the model counts padding, too, where there are no images."""
        if inputs.grid is None:
            counted = (inputs.mask.cumsum(-1) - 1).clamp(min=0)
            return counted.expand(3, -1, -1)
        positions, _ = self.encoder.model.get_rope_index(
            inputs.ids, inputs.kinds, image_grid_thw=inputs.grid, attention_mask=inputs.mask
        )
        return positions


def _chunk(head: nn.Module, hidden: Tensor, targets: Tensor, form: Form, part: slice) -> Tensor:
    """Log-probs of some of the targets, by their rows' logits."""
    return text_log_probs(head(hidden[:, part]), targets[:, part], form, part.start)
