"""The whole pre-training: images, autoencoder, transformer, snapshots."""

from typing import Any

import torch
from diffusers import AutoencoderKL
from diffusers.utils import logging as diffusers_logging

from atelier.policies.pretraining.run import GRID_SAMPLES, Pretraining, run_pretraining
from atelier.policies.pretraining.snapshots import sample_grid
from atelier.policies.sd3.pretrain import autoencoder
from atelier.policies.sd3.pretrain.evaluate import WordTest
from atelier.policies.sd3.pretrain.flow import FlowTrainer
from atelier.policies.sd3.pretrain.images import heldout_words, training_images
from atelier.policies.sd3.pretrain.options import Options
from atelier.policies.sd3.pretrain.reading import read_words, summary
from atelier.policies.sd3.pretrain.snapshot import save_snapshot
from atelier.policies.sd3.tiny import TinySD3Sizes, build_pipeline, build_vae, encode_prompts

ENCODE_PROMPTS = 512


def pretrain(options: Options) -> None:
    """See run_pretraining."""
    diffusers_logging.set_verbosity_error()
    run_pretraining(SD3Pretraining, options)


class SD3Pretraining(Pretraining[Options]):
    """Saves a snapshot whenever the held-out OCR similarity passes a threshold, and at the end."""

    reserve = 20.0

    def run(self) -> None:
        options = self.options
        self.thresholds = sorted(options.snapshot_at)
        pixels, prompts, _ = training_images(
            self.executor,
            options.images,
            options.seed,
            (options.word_share, options.mixed_share),
            options.word_lengths,
        )
        self.note("rendered", images=len(pixels))
        heldout = heldout_words(options.evaluate_prompts, options.seed)
        # Before anything is trained: without a working recogniser the run would be in vain.
        renders = summary(read_words(self.executor, heldout[0], heldout[2])[0])
        self.note("true renders", **renders)
        images = torch.from_numpy(pixels).to(options.device)
        vae = self._autoencoder(images)
        sizes = TinySD3Sizes(
            shift=options.shift, patch_size=options.patch_size, heads=options.heads
        )
        self.pipeline = build_pipeline(sizes, vae, options.seed).to(options.device)
        self.pipeline.set_progress_bar_config(disable=True)
        self.test = WordTest(self.pipeline, heldout, self.executor, options.seed)
        self.record["ceiling"] = {"renders": renders, "round_trip": self.test.round_trip()}
        self.note("ceiling", **self.record["ceiling"])
        trainer = FlowTrainer(
            self.pipeline.transformer,
            autoencoder.encode(vae, images),
            self._encode(prompts),
            self._encode([""]),
            options,
        )
        self.pipeline.transformer = trainer.average
        self._train(trainer)

    def _autoencoder(self, images: torch.Tensor) -> AutoencoderKL:
        options = self.options
        if options.vae is not None:
            self.record["vae"] = {"from": options.vae.name}
            vae = AutoencoderKL.from_pretrained(options.vae, subfolder="vae")
            return vae.to(options.device).eval().requires_grad_(False)
        torch.manual_seed(options.seed)
        vae = build_vae(TinySD3Sizes()).to(options.device)
        self.record["vae"] = autoencoder.train_autoencoder(vae, images, options)
        self.record["vae"] |= autoencoder.set_units(vae, images[:5000])
        self.note("vae", **self.record["vae"])
        return vae

    def _encode(self, prompts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode each different prompt once, in float16; empty prompts give [1, ...]."""
        unique = list(dict.fromkeys(prompts))
        parts = [
            encode_prompts(self.pipeline, unique[start : start + ENCODE_PROMPTS])
            for start in range(0, len(unique), ENCODE_PROMPTS)
        ]
        row = {prompt: index for index, prompt in enumerate(unique)}
        index = torch.tensor([row[prompt] for prompt in prompts], device=self.options.device)
        embeddings, pooled = (torch.cat(part).half() for part in zip(*parts, strict=True))
        return embeddings[index], pooled[index]

    def _train(self, trainer: FlowTrainer) -> None:
        options, losses, course = self.options, [], self.course()
        self.note("flow starts")
        for _ in course:
            losses.append(trainer.train_step())
            if trainer.step in (1, 10, 100):
                self.note("flow", step=trainer.step, loss=losses[-1].item())
            if trainer.step % options.evaluate_every == 0:
                loss = torch.stack(losses).mean().item()
                losses.clear()
                self._evaluate(trainer, loss, course.seconds)
        loss = torch.stack(losses).mean().item() if losses else self.curve[-1]["loss"]
        self._evaluate(trainer, loss, course.seconds, final=True)

    def _evaluate(
        self, trainer: FlowTrainer, loss: float, seconds: float, final: bool = False
    ) -> None:
        entry: dict[str, Any] = {"step": trainer.step, "loss": round(loss, 5)}
        entry["seconds"] = round(seconds, 1)
        first = self.options.evaluate_steps[0]
        for steps in self.options.evaluate_steps:
            images = self.test.generate(steps)
            scores, texts = self.test.read(images)
            entry[f"{steps} steps"] = summary(scores)
            if steps == first:
                read = [f"read: {text}" if text else "" for text in texts[:GRID_SAMPLES]]
                grid = images[:GRID_SAMPLES], self.test.prompts[:GRID_SAMPLES], read
        self.evaluated(entry)
        reached = entry[f"{first} steps"]["similarity"]
        crossed = [threshold for threshold in self.thresholds if reached >= threshold]
        if crossed or final:
            self.thresholds = self.thresholds[len(crossed) :]
            entry["schedules"] = self.test.schedules(first)
            name = f"step-{trainer.step:06d}-sim-{reached:.2f}"
            folder, record = self.options.out / name, self.snapshot_record(entry)
            save_snapshot(self.pipeline, folder, sample_grid(*grid), record)
            self.note("saved", name=name, schedules=entry["schedules"])
        self.write_log()
