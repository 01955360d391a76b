"""The whole pre-training: pictures, training, snapshots."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from diffusers import AutoencoderKL
from diffusers.utils import logging as diffusers_logging
from torch import Tensor
from transformers.utils import logging as transformers_logging

from atelier.policies.deepgen.inputs import Inputs, Reader
from atelier.policies.deepgen.layout import Model
from atelier.policies.deepgen.pretrain.exam import Exam
from atelier.policies.deepgen.pretrain.options import Options
from atelier.policies.deepgen.pretrain.snapshot import load_snapshot, save_snapshot
from atelier.policies.deepgen.pretrain.trainer import Trainer
from atelier.policies.deepgen.tiny.parts import Sizes, build_model
from atelier.policies.deepgen.transformer import masked
from atelier.policies.pretraining.run import GRID_SAMPLES, Pretraining, run_pretraining
from atelier.policies.pretraining.snapshots import describe_snapshot, read_record, sample_grid
from atelier.policies.qwen.tiny.tokenizer import load_tokenizer
from atelier.policies.sd3.pretrain.autoencoder import encode
from atelier.policies.sd3.pretrain.images import training_images

GUIDANCE = 3.0  # of a second evaluation


def pretrain(options: Options) -> None:
    """See run_pretraining."""
    diffusers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    run_pretraining(DeepGenPretraining, options)


class DeepGenPretraining(Pretraining[Options]):
    """Saves a snapshot whenever the held-out OCR similarity passes a threshold, and at the end."""

    reserve = 20.0

    def run(self) -> None:
        options = self.options
        self.thresholds = sorted(options.snapshot_at)
        if options.start is not None:
            self.record["start"] = read_record(options.start)["snapshot"]
        self.model = self._model()
        self.exam = Exam(self.model, options.evaluate_prompts, options.seed, self.executor)
        # Before anything is trained: without a working recogniser the run would be in vain.
        self.record["ceiling"] = self.exam.renders()
        self.note("true renders", **self.record["ceiling"])
        latents, inputs = self._taught()
        self._train(Trainer(self.model, latents, inputs, options))

    def _model(self) -> Model:
        options = self.options
        model = self._untrained() if options.start is None else load_snapshot(options.start)
        model.vae.requires_grad_(False)
        for part in model.modules().values():
            part.to(options.device)
        counts = {
            name: sum(one.numel() for one in part.parameters())
            for name, part in model.modules().items()
        }
        self.record["parameters"] = counts
        self.note("model", **counts)
        return model

    def _untrained(self) -> Model:
        options = self.options
        tokenizer = load_tokenizer(options.tokenizer)
        vae = AutoencoderKL.from_pretrained(options.autoencoder, subfolder="vae")
        model = build_model(tokenizer, vae, Sizes(shift=options.shift), options.seed)
        masked(model.transformer)
        return model

    def _taught(self) -> tuple[tuple[Tensor, Tensor], Inputs]:
        """Latents of the pictures, and their prompts with the empty one last, on the device."""
        options, model = self.options, self.model
        shares = (options.word_share, options.mixed_share)
        pixels, prompts, _ = training_images(
            self.executor, options.images, options.seed, shares, options.word_lengths
        )
        self.note("rendered", images=len(pixels))
        latents = encode(model.vae, torch.from_numpy(pixels).to(options.device))
        reader = Reader(model.tokenizer, model.template, model.vlm, model.bridge.shape.queries)
        inputs = reader.inputs(reader.drawings([*prompts, ""]))
        self.note("prompts", tokens=list(inputs.mask.shape))
        return latents, inputs.to(options.device)

    def _train(self, trainer: Trainer) -> None:
        options, course = self.options, self.course()
        losses: list[Tensor] = []
        evaluated = 0.0
        self.note("training starts")
        for _ in course:
            losses.append(trainer.train_step())
            if trainer.step % 50 == 0 or trainer.step < 5:
                losses[-1].item()  # the clock tells the truth once the device has caught up
            if trainer.step in (1, 10, 100, 1000):
                self.note("step", step=trainer.step, loss=losses[-1].item())
            if course.seconds - evaluated > options.evaluate_seconds:
                self._evaluate(trainer, losses, course.seconds)
                losses, evaluated = [], course.seconds
        self._evaluate(trainer, losses, course.seconds, final=True)

    def _evaluate(
        self, trainer: Trainer, losses: list[Tensor], seconds: float, final: bool = False
    ) -> None:
        steps = self.options.evaluate_steps
        parts: Any = copy.deepcopy(trainer.average).half().float()  # as a snapshot has them
        images = self.exam.paint(parts, steps)
        found, notes = self.exam.scores(images)
        entry: dict[str, Any] = {"step": trainer.step, "seconds": round(seconds, 1), **found}
        if losses:
            entry["loss"] = round(torch.stack(losses).mean().item(), 5)
        self.evaluated(entry)
        reached = found["similarity"]
        crossed = [threshold for threshold in self.thresholds if reached >= threshold]
        if crossed or final:
            self.thresholds = self.thresholds[len(crossed) :]
            entry["guided"] = self.exam.scores(self.exam.paint(parts, steps, GUIDANCE))[0]
            some = self.exam.grid(images, notes, GRID_SAMPLES)
            name = f"step-{trainer.step:06d}-sim-{reached:.2f}"
            folder = self.options.out / name
            save_snapshot(replace(self.model, **dict(parts.items())), folder)
            grid = sample_grid(some.images, some.prompts, some.notes)
            describe_snapshot(folder, grid, self.snapshot_record(entry))
            self.note("saved", name=name, guided=entry["guided"])
        self.write_log()
