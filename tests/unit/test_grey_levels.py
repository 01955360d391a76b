"""What is decoded is an image, or the run stops: a cast of NaN is black without a word."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL

from atelier.config.sections.policy_parts import VaeConfig
from atelier.errors import Stopped
from atelier.policies.grey_levels import as_grey_levels
from atelier.policies.janus.pixels import to_uint8
from atelier.policies.qwen.environment import _grey_levels
from atelier.policies.sd3.decoder import ImageDecoder


def test_levels_are_clipped_and_not_rounded():
    values = torch.tensor([-0.1, 0.0, 0.25, 1.0, 1.1])
    assert as_grey_levels(values, "").tolist() == [0, 0, 63.75, 255, 255]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_no_image(value):
    with pytest.raises(Stopped, match="NaN or infinite; mend it"):
        as_grey_levels(torch.tensor([0.5, value]), "mend it")


def test_every_family_stops():
    with pytest.raises(Stopped, match="image tokenizer"):
        to_uint8(torch.tensor([float("nan")]))
    with pytest.raises(Stopped, match=r"rollout\.environment\.dtype"):
        _grey_levels(np.full((1, 2, 2, 3), np.nan, np.float32))
    vae = AutoencoderKL(norm_num_groups=2, block_out_channels=(4,), shift_factor=0.0)
    decoder = ImageDecoder(vae, VaeConfig(), torch.device("cpu"))
    with pytest.raises(Stopped, match=r"policy\.vae\.dtype"):
        decoder.decode(torch.full((1, 4, 2, 2), float("nan"))).wait()
