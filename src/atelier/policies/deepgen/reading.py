"""What of the language model the connector sees: some of its layers, side by side.

Source: DeepGen-RL.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from atelier.config.facts.connector_fit import chosen_layers
from atelier.policies.deepgen.inputs import Inputs


def fused_states(vlm: Any, queries: Tensor, inputs: Inputs) -> Tensor:
    """Hidden states of the chosen layers over all tokens, queries included.

    Args:
        vlm: Qwen2_5_VLForConditionalGeneration.
        queries: [queries, width], the learned embeddings that follow every prompt.

    Returns:
        [B, L + queries, layers * width] in the model's dtype; zeros on padding, whose own states
        are no numbers with some kernels.
    """
    model = vlm.model
    embeds = model.get_input_embeddings()(inputs.ids)
    if inputs.patches is not None:
        looked = model.get_image_features(inputs.patches, inputs.grid)
        images = torch.cat(looked.pooler_output).to(embeds.dtype)
        places = (inputs.ids == model.config.image_token_id)[..., None]
        embeds = embeds.masked_scatter(places, images)
    follow = queries.to(embeds.dtype).expand(len(embeds), -1, -1)
    found = model.language_model(
        inputs_embeds=torch.cat([embeds, follow], dim=1),
        attention_mask=inputs.mask,
        position_ids=inputs.positions,
        use_cache=False,
        output_hidden_states=True,
    ).hidden_states
    states = torch.cat([found[index] for index in chosen_layers(len(found) - 1)], dim=-1)
    return states.where(inputs.mask[..., None], 0)
