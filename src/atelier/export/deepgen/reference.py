"""The images that an exported model must reproduce (sd3/reference.py), prompts encoded one by one.

A run that draws is compared by what it draws, one that edits by its edits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from atelier.config.schema import RunConfig
from atelier.config.sections.deepgen import ConnectorConfig
from atelier.data.prompts import Prompt
from atelier.export.sd3.reference import ImageReference, images_of, in_float32
from atelier.policies.deepgen.policy import DeepGenPolicy


def make_reference(
    config: RunConfig, tensors: Mapping[str, Tensor], prompts: Sequence[Prompt], device: str
) -> ImageReference:
    """See sd3/reference.py."""
    policy = DeepGenPolicy.load(_exact(config), device, prompts=[one.text for one in prompts])
    found = images_of(policy, config, tensors, prompts, {})
    if config.rollout.kind != "edit":
        return found
    return replace(found, sources=np.stack([np.asarray(policy.source(one)) for one in prompts]))


def _exact(config: RunConfig) -> RunConfig:
    """The same model in float32; what is asked of it does not depend on its neighbours."""
    heads = config.policy.connector.heads
    alone = ConnectorConfig(padding="masked", heads=heads)
    policy = in_float32(config.policy).model_copy(update={"connector": alone})
    return config.model_copy(update={"policy": policy})
