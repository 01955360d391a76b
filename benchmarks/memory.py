"""Peak memory of each phase of a step on one device, beside what `atelier plan` predicts.

    python -m benchmarks.memory --set policy.resolution=512
    python -m benchmarks.memory --family janus --recipe janus-pro-1b/pair-grpo
    python -m benchmarks.memory --family janus --shape small --set launch.device=cpu \\
        --set rollout.tokens.execution=eager  # on a CPU
    python -m benchmarks.memory --shape small --set launch.device=cpu --set policy.dtype=bfloat16 \\
        --set policy.resolution=null --set policy.text.dtype=bfloat16

Builds a model of a published shape with random weights (SD3.5-Medium or Janus-Pro-1B unless --shape
names another; `small`, and of janus `middle`, for a CPU), rolls one micro-batch out, replays it,
updates and makes one of held-out images, twice. The second round counts: AdamW's moments exist only
after a first. Settings are those of --recipe and --set; the model is the one built here, and
rewards are not asked. On a CPU operations are followed one by one, which takes its time, and what
holds for a small shape need not for a large one.

Of sd3, prompts are encoded first, by tiny text encoders unless --text real (T5-XXL: 9.5 GB of
disk). Of janus, prompts are as long as the plan assumes, and a few shorter, so that there is
padding.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from atelier.config.facts.read import read_model_facts
from atelier.config.memory.estimate import Memory, estimate
from atelier.config.memory.parts import made_together
from atelier.config.memory.sequences import PROMPT_TOKENS
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.config.work import work
from atelier.data.prompts import Prompt
from atelier.data.scenes import sample_scene, to_dict
from atelier.policies.base import Policy, Sample
from atelier.training.distributed import World, join_world
from atelier.training.engines import Engine, make_engine
from benchmarks.allocations import Allocations
from benchmarks.janus_shape import JANUS_SHAPES, write_janus
from benchmarks.sd3_shape import SHAPES, build_pipeline

GIBIBYTE = 2**30
RECIPES = {"sd3": "sd35m/flow-grpo-fast-1gpu", "janus": "janus-pro-1b/grpo"}
USUAL_SHAPES = {"sd3": "medium", "janus": "1b"}
WORDS = ("a", "red", "circle", "and", "a", "blue", "square")  # a token each
_TEMPLATE = 10  # tokens of a prompt that are not its words


class Meter:
    """Peak bytes of tensors on a device, by phase; the last time counts."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self.peaks: dict[str, int] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        if not self._on_gpu:
            with Allocations() as made:
                yield
            self.peaks[phase] = made.peak
            return
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        yield
        torch.cuda.synchronize()
        self.peaks[phase] = torch.cuda.max_memory_allocated()


def load_sd3(config: RunConfig, world: World, meter: Meter) -> tuple[Policy, list[Sample]]:
    """A policy, and a micro-batch of one prompt, which is encoded."""
    from atelier.policies.sd3.loading import load_image_parts
    from atelier.policies.sd3.policy import SD3Policy
    from atelier.policies.sd3.prompts import prompt_encoder

    folder = Path(config.policy.path)
    prompt = Prompt(0, 0, "a sign that says SUN", {})
    encoder = prompt_encoder(folder, config.policy, world.device)
    with meter("prompts"):
        encoder.prepare([prompt.text])
    policy = SD3Policy(load_image_parts(folder, config.policy), encoder, config, world.device)
    return policy, [Sample(i, 0, prompt) for i in range(config.rollout.micro_batch_size)]


def load_janus(config: RunConfig, world: World, meter: Meter) -> tuple[Policy, list[Sample]]:
    """A policy, and a micro-batch of prompts; two samples are ground truth where that is on."""
    from atelier.policies.janus.policy import JanusPolicy

    policy = JanusPolicy.load(config, world.device)
    count = config.rollout.micro_batch_size
    given = 2 if config.algorithm.ground_truth.enabled else 0
    samples = []
    for index in range(count):
        prompt = janus_prompt(index, PROMPT_TOKENS - _TEMPLATE - index % 4)
        truth = prompt if index >= count - given else None
        samples.append(Sample(index, 0, prompt, truth=truth))
    return policy, samples


def janus_prompt(index: int, words: int) -> Prompt:
    """So many words, a picture that they ask for, and one that they change."""
    text = " ".join(WORDS[place % len(WORDS)] for place in range(words))
    scene = to_dict(sample_scene(random.Random(index), "shapes"))
    return Prompt(index, 0, text, {"scene": scene, "source_scene": scene})


LOADERS = {"sd3": load_sd3, "janus": load_janus}


def measure(config: RunConfig, world: World) -> dict[str, int]:
    """Peak bytes of every phase, one micro-batch each."""
    meter = Meter(world.device)
    policy, samples = LOADERS[config.policy.family](config, world, meter)
    with_reference = config.algorithm.beta > 0
    if with_reference:
        policy.prepare_reference()
    engine = make_engine(
        policy.module,
        policy.trainable(),
        config.train,
        config.launch,
        world,
        dtype=config.policy.dtype,
    )
    for step in (1, 2):
        train_step(step, policy, engine, samples, with_reference, meter)
        held_out(policy, samples, config, meter)
    return meter.peaks


def held_out(policy: Policy, samples: Sequence[Sample], config: RunConfig, meter: Meter) -> None:
    """Images between two steps, as many as are made together, where some are."""
    together = made_together(config).get("evaluation")
    if together is None:
        return
    prompts = [samples[place % len(samples)].prompt for place in range(together.images)]
    with meter("evaluation"):
        policy.generate(policy.module, prompts, range(together.images))


def train_step(
    step: int,
    policy: Policy,
    engine: Engine,
    samples: Sequence[Sample],
    with_reference: bool,
    meter: Meter,
) -> None:
    """A micro-batch, every segment and action of it, as the trainer does it; and an update."""
    policy.begin_step(step)
    with meter("rollout"):
        rollout = policy.rollout(policy.module, samples)
    parts = list(policy.parts(rollout))
    with meter("replay"):
        for number, part in enumerate(parts, start=1):
            last = number == len(parts)
            with engine.accumulate(last):
                replayed = policy.replay(engine.module, rollout, part, with_reference)
                trained = replayed.log_prob
                if trained is None:
                    trained = replayed.statistics["velocity"]
                engine.backward(-trained.mean() / len(parts), last)
    with meter("update"):
        engine.step(1e-6)


def write_model(arguments: argparse.Namespace, folder: Path) -> None:
    """Unless it is there."""
    shape = arguments.shape or USUAL_SHAPES[arguments.family]
    if arguments.family == "janus":
        if not (folder / "config.json").is_file():
            write_janus(JANUS_SHAPES[shape], folder)
    elif not (folder / "model_index.json").is_file():
        build_pipeline(SHAPES[shape], arguments.text == "real", folder)


def report(predicted: Memory, peaks: dict[str, int]) -> None:
    """Phase by phase, and what the prediction is made of."""
    print(f"{'phase':<10}{'predicted GiB':>15}{'measured GiB':>15}{'measured/predicted':>20}")
    for phase in predicted.phases:
        expected, found = predicted.at(phase), peaks[phase]
        ratio = f"{found / expected:>20.2f}"
        print(f"{phase:<10}{expected / GIBIBYTE:>15.3f}{found / GIBIBYTE:>15.3f}{ratio}")
    for place, terms in (("held", predicted.held), *predicted.phases.items()):
        for name, size in terms.items():
            print(f"  {place}: {name} {size / GIBIBYTE:.3f} GiB")


def arguments_of(words: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", choices=sorted(LOADERS), default="sd3")
    parser.add_argument("--shape", choices=sorted({*SHAPES, *JANUS_SHAPES}))
    parser.add_argument("--text", choices=("tiny", "real"), default="tiny")
    parser.add_argument("--recipe")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--folder", type=Path, help="keep the model here, or use the one there")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    arguments = arguments_of(words)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary) / "model").resolve()
        write_model(arguments, folder)
        settings = [*arguments.overrides, f"policy.path={folder}"]
        config = resolve(arguments.recipe or RECIPES[arguments.family], settings)
        facts = read_model_facts(config)
        assert facts is not None  # it was just written
        actions = work(config, facts).actions
        predicted = estimate(config, facts, config.rollout.micro_batch_size, actions, ranks=1)
        with join_world(config.launch) as world:
            peaks = measure(config, world)
    report(predicted, peaks)


if __name__ == "__main__":
    main()
