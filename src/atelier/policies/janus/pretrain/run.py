"""The whole pre-training: images, image tokenizer, language model, snapshots."""

from __future__ import annotations

from typing import Any

import torch
from transformers import JanusForConditionalGeneration
from transformers.utils import logging as transformers_logging

from atelier.policies.janus.pretrain import vq
from atelier.policies.janus.pretrain.evaluate import GUIDANCE, Exam
from atelier.policies.janus.pretrain.options import Options
from atelier.policies.janus.pretrain.own_images import learn_from_own
from atelier.policies.janus.pretrain.painter import Painter
from atelier.policies.janus.pretrain.snapshot import save_snapshot
from atelier.policies.janus.pretrain.training import Bank, Trainer
from atelier.policies.janus.pretrain.world import World, make_world
from atelier.policies.janus.tiny import (
    TinyJanusSizes,
    build_model,
    build_processor,
    build_tokenizer,
)
from atelier.policies.pretraining.run import GRID_SAMPLES, Pretraining, run_pretraining
from atelier.policies.pretraining.snapshots import read_record, sample_grid


def pretrain(options: Options) -> None:
    """See run_pretraining."""
    transformers_logging.disable_progress_bar()
    run_pretraining(JanusPretraining, options)


class JanusPretraining(Pretraining[Options]):
    """Saves a snapshot at every evaluation."""

    reserve = 15.0

    def run(self) -> None:
        options = self.options
        sizes = TinyJanusSizes(
            patch_size=options.patch_size,
            vq_blocks=options.vq_blocks,
            codes=options.codes,
            width=options.width,
            layers=options.layers,
            heads=options.heads,
            feed_forward=options.feed_forward,
        )
        world = make_world(self.executor, options.cases, "train", options.seed, sizes.image_tokens)
        self.note("rendered", images=len(world.images))
        tokenizer = build_tokenizer()
        self.processor = build_processor(tokenizer, sizes)
        model = build_model(tokenizer, sizes, options.seed).to(options.device)
        self.record["parameters"] = _parameters(model)
        self.note("built", **self.record["parameters"])
        self.exam = Exam(options.heldout, options.seed, self.executor)
        bank = self._bank(model, world)
        trainer = Trainer(model, bank, world.tables, tokenizer.pad_token_id, options)
        self.painter = Painter(trainer.average, tokenizer)
        self.record["ceiling"] = self.exam.ceiling(self.painter)
        self.note("ceiling", **self.record["ceiling"])
        self._train(trainer)

    def _bank(self, model: JanusForConditionalGeneration, world: World) -> Bank:
        """Train the image tokenizer, freeze it, and code all images once."""
        options, tokenizer = self.options, model.model.vqmodel
        images = torch.from_numpy(world.images).to(options.device)
        self.record["vq"] = {}
        if options.vq is not None:
            made = JanusForConditionalGeneration.from_pretrained(options.vq, dtype="float32")
            tokenizer.load_state_dict(made.model.vqmodel.state_dict())
            self.record["vq"] = {"from": read_record(options.vq)["vq"]}
        if options.vq_seconds > 0:
            self.record["vq"] |= vq.train_tokenizer(tokenizer, images, options)
        tokenizer.requires_grad_(False)
        self.note("image tokenizer", **self.record["vq"])
        with torch.no_grad():  # what is drawn is embedded by what it means from the start on
            model.model.generation_embeddings.weight.copy_(tokenizer.quantize.embedding.weight)
        own = torch.zeros(options.own_images, *images.shape[1:], dtype=torch.uint8)
        codes = vq.encode(tokenizer, images)
        decoded = vq.decode(tokenizer, codes)
        own = own.to(images.device)
        blank = codes.new_zeros(options.own_images, codes.shape[1])
        return Bank(
            torch.cat([images, own]),
            torch.cat([decoded, own]),
            torch.cat([codes, blank]),
            len(images),
        )

    def _train(self, trainer: Trainer) -> None:
        options, course, evaluated = self.options, self.course(), 0.0
        self.note("training starts")
        own_at = list(options.own_at)
        for done in course:
            if own_at and done >= own_at[0]:
                self._own_images(trainer, seed=options.seed + 100 * len(own_at))
                own_at.pop(0)
            trainer.train_step(done)
            if trainer.step % 100 == 0 or trainer.step < 5:
                self._wait()
            if trainer.step in (1, 10, 100, 1000):
                self.note("step", step=trainer.step)
            if course.seconds - evaluated > options.evaluate_seconds:
                self._evaluate(trainer, course.seconds)
                evaluated = course.seconds
        self._evaluate(trainer, course.seconds)

    def _wait(self) -> None:
        """The clock tells the truth only once the device has done what it was told."""
        if self.options.device == "cuda":
            torch.cuda.synchronize()

    def _own_images(self, trainer: Trainer, seed: int) -> None:
        options = self.options
        right = learn_from_own(
            trainer, self.painter, options.own_images, options.cases, seed, self.executor
        )
        self.note("own images", step=trainer.step, right=round(right, 4))

    def _evaluate(self, trainer: Trainer, seconds: float) -> None:
        entry: dict[str, Any] = {"step": trainer.step, "seconds": round(seconds, 1)}
        entry["loss"] = trainer.losses()
        found, drawn = self.exam.all(self.painter)
        entry |= found
        self.evaluated(entry)
        notes = ["right" if right else "wrong" for right in drawn.right[:GRID_SAMPLES]]
        grid = sample_grid(drawn.images[:GRID_SAMPLES], drawn.prompts[:GRID_SAMPLES], notes)
        reached = found["draw"][f"cfg {GUIDANCE:g}"]
        folder = self.options.out / f"step-{trainer.step:06d}-draw-{reached:.2f}"
        record = self.snapshot_record(entry)
        save_snapshot(trainer.average, self.processor, folder, grid, record)
        self.write_log()


def _parameters(model: JanusForConditionalGeneration) -> dict[str, int]:
    """Parameters of each part, and of all (the text embedding is also the text head)."""
    parts = {name: part for name, part in model.model.named_children()}
    counts = {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}
    return {**counts, "all": sum(p.numel() for p in model.parameters())}
