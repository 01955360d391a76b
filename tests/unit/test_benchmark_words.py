"""Pictures that a benchmark draws over noise are what OCR meets: it reads their words, no more."""

from __future__ import annotations

import pytest
import torch
from diffusers import AutoencoderKL

from atelier.config.sections.policy_parts import VaeConfig
from atelier.policies.sd3.decoder import ImageDecoder
from benchmarks.words import WORDS, words_are_drawn

LATENTS = torch.randn(2, 4, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def decoder() -> ImageDecoder:
    torch.manual_seed(0)
    vae = AutoencoderKL(
        block_out_channels=(8, 8, 8, 8),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        norm_num_groups=4,
        latent_channels=4,
        shift_factor=0.0,
    )
    return ImageDecoder(vae, VaeConfig(), torch.device("cpu"))


def test_ocr_reads_the_words_and_no_two_images_are_equal(decoder: ImageDecoder) -> None:
    rapidocr = pytest.importorskip("rapidocr")
    with words_are_drawn():
        first, second = decoder.decode(LATENTS).wait()
    read = rapidocr.RapidOCR(params={"Global.log_level": "error"})(first, use_cls=False)
    assert "\n".join(read.txts) == WORDS
    assert (first != second).any()


def test_afterwards_noise_is_noise_again(decoder: ImageDecoder) -> None:
    before = decoder.decode(LATENTS).wait()
    with words_are_drawn():
        assert (decoder.decode(LATENTS).wait() != before).any()
    assert (decoder.decode(LATENTS).wait() == before).all()
