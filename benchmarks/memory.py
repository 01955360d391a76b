"""Peak memory of each phase of a step on one device, beside what `atelier plan` predicts.

    python benchmarks/memory.py --set policy.resolution=512
    python benchmarks/memory.py --shape small --set launch.device=cpu   # does it run at all?

Builds a pipeline of SD3.5-Medium's shape with random weights (--shape small: the same in small, for
a CPU), encodes prompts, and then, twice, rolls one micro-batch out, replays its window and updates.
The second round counts: AdamW's moments exist only after a first. Settings are those of --recipe
and --set; the model's path is that of the pipeline built here. Text encoders are tiny unless
--text real (T5-XXL: 9.5 GB of disk). On a CPU nothing is measured.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from transformers import (
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
)

from atelier.config.memory import estimate
from atelier.config.model_facts import read_model_facts
from atelier.config.plan import plan
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.data.prompts import Prompt
from atelier.policies.base import Sample
from atelier.policies.sd3.loading import load_image_parts
from atelier.policies.sd3.policy import SD3Policy
from atelier.policies.sd3.prompts import prompt_encoder
from atelier.policies.sd3.tiny import TinySD3Sizes, build_tokenizer
from atelier.training.distributed import World, join_world
from atelier.training.engines import Engine, make_engine

GIBIBYTE = 2**30


@dataclass(frozen=True)
class Shape:
    """Sizes of transformer and autoencoder. Defaults: SD3.5-Medium."""

    sample_size: int = 128
    layers: int = 24
    heads: int = 24
    dual_layers: int = 13
    table: int = 384
    text_width: int = 4096
    clip_widths: tuple[int, int] = (768, 1280)
    vae_channels: tuple[int, ...] = (128, 256, 512, 512)
    latent_channels: int = 16


SHAPES = {
    "medium": Shape(),
    "small": Shape(16, 2, 2, 1, 16, 64, (16, 32), (32, 32), 4),
}


def build_transformer(shape: Shape) -> SD3Transformer2DModel:
    """Random weights of the real class."""
    width = shape.heads * 64
    return SD3Transformer2DModel(
        sample_size=shape.sample_size,
        patch_size=2,
        in_channels=shape.latent_channels,
        out_channels=shape.latent_channels,
        num_layers=shape.layers,
        num_attention_heads=shape.heads,
        attention_head_dim=64,
        joint_attention_dim=shape.text_width,
        caption_projection_dim=width,
        pooled_projection_dim=sum(shape.clip_widths),
        pos_embed_max_size=shape.table,
        dual_attention_layers=tuple(range(shape.dual_layers)),
        qk_norm="rms_norm",
    )


def build_vae(shape: Shape) -> AutoencoderKL:
    blocks = len(shape.vae_channels)
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
        block_out_channels=shape.vae_channels,
        layers_per_block=2,
        latent_channels=shape.latent_channels,
        sample_size=shape.sample_size * 2 ** (blocks - 1),
        scaling_factor=1.5305,
        shift_factor=0.0609,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def build_clip(tokenizer: CLIPTokenizer, width: int, layers: int) -> CLIPTextModelWithProjection:
    return CLIPTextModelWithProjection(
        CLIPTextConfig(
            vocab_size=49408 if layers > 1 else len(tokenizer),
            hidden_size=width,
            intermediate_size=4 * width,
            projection_dim=width,
            num_hidden_layers=layers,
            num_attention_heads=max(1, width // 64),
            max_position_embeddings=tokenizer.model_max_length,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def build_t5(tokenizer: CLIPTokenizer, shape: Shape, real: bool) -> T5EncoderModel:
    return T5EncoderModel(
        T5Config(
            vocab_size=32128 if real else len(tokenizer),
            d_model=shape.text_width,
            d_kv=64,
            d_ff=10240 if real else 64,
            num_layers=24 if real else 1,
            num_heads=64 if real else 1,
            feed_forward_proj="gated-gelu",
        )
    )


def build_pipeline(shape: Shape, real_text: bool, folder: Path) -> None:
    """Write the pipeline in bfloat16, one part in memory after another."""
    tokenizer = build_tokenizer(TinySD3Sizes(clip_tokens=77))
    first, second = shape.clip_widths
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    with device:
        pipeline = StableDiffusion3Pipeline(
            transformer=build_transformer(shape).to("cpu", torch.bfloat16),
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
            vae=build_vae(shape).to("cpu", torch.bfloat16),
            text_encoder=build_clip(tokenizer, first, 12 if real_text else 1).to("cpu"),
            tokenizer=tokenizer,
            text_encoder_2=build_clip(tokenizer, second, 32 if real_text else 1).to("cpu"),
            tokenizer_2=tokenizer,
            text_encoder_3=build_t5(tokenizer, shape, real_text).to("cpu", torch.bfloat16),
            tokenizer_3=tokenizer,
        )
    pipeline.to(torch.bfloat16).save_pretrained(folder)


class Meter:
    """Peak bytes allocated on a device, by phase."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self.peaks: dict[str, int] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        if self._on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        yield
        if self._on_gpu:
            torch.cuda.synchronize()
            self.peaks[phase] = torch.cuda.max_memory_allocated()


def measure(config: RunConfig, folder: Path, world: World) -> dict[str, int]:
    """Peak bytes of every phase, one micro-batch each."""
    meter = Meter(world.device)
    count = config.rollout.micro_batch_size
    samples = [Sample(i, 0, Prompt(0, 0, "a sign that says SUN", {})) for i in range(count)]
    encoder = prompt_encoder(folder, config.policy, world.device)
    with meter("prompts"):
        encoder.prepare([samples[0].prompt.text])
    policy = SD3Policy(
        load_image_parts(folder, config.policy),
        encoder,
        config.policy,
        config.rollout,
        config.evaluation,
        config.train.seed,
        world.device,
    )
    with_reference = config.algorithm.beta > 0
    if with_reference:
        policy.prepare_reference()
    engine = make_engine(
        policy.module,
        policy.trainable(),
        config.train,
        config.launch,
        world,
        scale_loss=config.policy.dtype == "float16",
    )
    for step in (1, 2):
        train_step(step, policy, engine, samples, with_reference, meter)
    return meter.peaks


def train_step(
    step: int,
    policy: SD3Policy,
    engine: Engine,
    samples: list[Sample],
    with_reference: bool,
    meter: Meter,
) -> None:
    policy.begin_step(step)
    with meter("rollout"):
        rollout = policy.rollout(policy.module, samples)
    slices = list(policy.action_slices(rollout))
    with meter("replay"):
        for number, actions in enumerate(slices, start=1):
            last = number == len(slices)
            with engine.accumulate(last):
                replayed = policy.replay(engine.module, rollout, actions, with_reference)
                trained = replayed.log_prob
                if trained is None:
                    trained = replayed.statistics["velocity"]
                engine.backward(-trained.mean() / len(slices), last)
    with meter("update"):
        engine.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="medium")
    parser.add_argument("--text", choices=("tiny", "real"), default="tiny")
    parser.add_argument("--recipe", default="sd35m/flow-grpo-fast-1gpu")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--folder", type=Path, help="keep the pipeline here, or use the one there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary) / "pipeline").resolve()
        if not (folder / "model_index.json").is_file():
            build_pipeline(SHAPES[arguments.shape], arguments.text == "real", folder)
        config = resolve(arguments.recipe, [*arguments.overrides, f"policy.path={folder}"])
        facts = read_model_facts(config)
        assert facts is not None
        actions = plan(config).trained_actions
        predicted = estimate(config, facts, config.rollout.micro_batch_size, actions, ranks=1)
        with join_world(config.launch) as world:
            peaks = measure(config, folder, world)
    print(f"{'phase':<10}{'predicted GiB':>15}{'measured GiB':>15}{'measured/predicted':>20}")
    for phase in predicted.phases:
        expected, found = predicted.at(phase), peaks.get(phase)
        tail = f"{found / GIBIBYTE:>15.2f}{found / expected:>20.2f}" if found else f"{'-':>15}"
        print(f"{phase:<10}{expected / GIBIBYTE:>15.2f}{tail}")
    for place, terms in (("held", predicted.held), *predicted.phases.items()):
        for name, size in terms.items():
            print(f"  {place}: {name} {size / GIBIBYTE:.3f} GiB")


if __name__ == "__main__":
    main()
