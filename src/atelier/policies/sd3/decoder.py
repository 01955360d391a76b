"""From latents to images: what a reward sees depends on how, so there is one way to do it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import torch
from diffusers import AutoencoderKL
from torch import Tensor

from atelier.config.sections.policy_parts import VaeConfig
from atelier.policies.grey_levels import GreyLevels

_MEND = (
    "set policy.vae.dtype to bfloat16 or float32, which hold larger numbers than float16; if it "
    "is, the transformer's latents are the cause (policy.dtype)"
)


class ImageDecoder:
    """A pipeline's frozen autoencoder with the settings of `policy.vae`, on `device`.

    Args:
        compiled: by Inductor, when it decodes for the first time.
    """

    def __init__(
        self,
        vae: AutoencoderKL,
        config: VaeConfig,
        device: torch.device,
        compiled: bool = False,
    ) -> None:
        self._vae = vae.requires_grad_(False).eval().to(device)
        vae.use_slicing, vae.use_tiling = config.slicing, config.tiling
        if compiled:
            # Half of its time goes to norms, sums and copies between its convolutions. diffusers
            # asks there for torch's version, which is cached and does not change.
            warnings.filterwarnings("ignore", "Dynamo detected a call to a `functools.lru_cache`")
            vae.decoder.forward = partial(_of_any_number, torch.compile(vae.decoder.forward))

    @torch.no_grad()
    def decode(self, latents: Tensor) -> GreyLevels:
        """Latents [B, C, h, w] float32 to images [B, H, W, 3], as the pipeline does."""
        vae = self._vae
        latents = latents / vae.config.scaling_factor + vae.config.shift_factor
        images = vae.decode(latents.to(vae.dtype), return_dict=False)[0].float()
        return GreyLevels((images / 2 + 0.5).permute(0, 2, 3, 1), _MEND)


def _of_any_number(run: Callable[[Tensor], Tensor], latents: Tensor) -> Tensor:
    """Compiled once: the last images of an evaluation are fewer than others."""
    torch._dynamo.maybe_mark_dynamic(latents, 0)
    return run(latents)
