"""The three trainings, each from its data to what it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKLQwenImage, QwenImageTransformer2DModel
from diffusers.utils import logging as diffusers_logging
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from transformers import Qwen2_5_VLForConditionalGeneration
from transformers.utils import logging as transformers_logging

from atelier.policies.pretraining.compute import rounded
from atelier.policies.pretraining.run import GRID_SAMPLES, Pretraining, run_pretraining
from atelier.policies.pretraining.snapshots import (
    RECORD,
    describe_snapshot,
    read_record,
    sample_grid,
    write_json,
)
from atelier.policies.qwen.chat import Chat
from atelier.policies.qwen.pretrain import autoencoder
from atelier.policies.qwen.pretrain.exam import Exam, failures
from atelier.policies.qwen.pretrain.options import (
    AutoencoderOptions,
    PainterOptions,
    WriterOptions,
)
from atelier.policies.qwen.pretrain.painter import PainterTrainer, Pictures
from atelier.policies.qwen.pretrain.snapshot import (
    AUTOENCODER,
    ENCODER,
    TOKENIZER,
    rounded_part,
    save_part,
    save_pipeline,
)
from atelier.policies.qwen.pretrain.tellings import Conditions, conditions, tellings
from atelier.policies.qwen.pretrain.world import Cases, any_images, make_cases
from atelier.policies.qwen.pretrain.writer import WriterTrainer, lessons
from atelier.policies.qwen.templates import stock
from atelier.policies.qwen.tiny.parts import (
    AREAS,
    KINDS,
    Sizes,
    assemble,
    build_autoencoder,
    build_encoder,
    build_pipeline,
    build_transformer,
)
from atelier.policies.qwen.tiny.tokenizer import load_tokenizer

BEST = "best"  # the folder of the best pipeline so far
PARTS_TOLD = 500  # steps between words about a training


def pretrain_autoencoder(options: AutoencoderOptions) -> None:
    """See run_pretraining."""
    _quietly(AutoencoderPretraining, options)


def pretrain_writer(options: WriterOptions) -> None:
    """See run_pretraining."""
    _quietly(WriterPretraining, options)


def pretrain_painter(options: PainterOptions) -> None:
    """See run_pretraining."""
    _quietly(PainterPretraining, options)


class AutoencoderPretraining(Pretraining[AutoencoderOptions]):
    """Leaves the autoencoder."""

    reserve = 12.0

    def run(self) -> None:
        options = self.options
        pixels = any_images(self.executor, options.images, "train", options.seed)
        self.note("rendered", images=len(pixels))
        images = torch.from_numpy(pixels).to(options.device)
        model = build_autoencoder(seed=options.seed).to(options.device)
        trainer = autoencoder.AutoencoderTrainer(model, images, options)
        course, parts = self.course(), {}
        for done in course:
            parts = trainer.train_step(done)
            if trainer.step % PARTS_TOLD == 0:
                self.evaluated({"step": trainer.step, **rounded(parts)})
        autoencoder.forget_time(trainer.average)
        autoencoder.set_units(trainer.average, images[:5000])
        left = rounded_part(trainer.average)
        self.evaluated(
            {
                "step": trainer.step,
                "seconds": round(course.seconds, 1),
                **rounded(parts),
                "right after it": self._round_trip(left),
                "latents_std": left.config.latents_std,
            }
        )
        save_part(left, options.out / AUTOENCODER)
        _keep(self)

    def _round_trip(self, model: AutoencoderKLQwenImage) -> dict[str, float]:
        """The share of held-out pictures that are right after encoding and decoding."""
        options = self.options
        found: dict[str, float] = {}
        for kind in KINDS:
            tokenizer = load_tokenizer(Path("assets/tiny-qwen-image/tokenizer"))
            pipeline = build_pipeline(tokenizer, kind)
            pipeline.register_modules(vae=model)
            exam = Exam(pipeline, kind, options.heldout, options.seed, self.executor)
            found[kind] = exam.round_trip()
        return found


class WriterPretraining(Pretraining[WriterOptions]):
    """Leaves the language model and its tokenizer."""

    reserve = 15.0

    def run(self) -> None:
        options = self.options
        tokenizer = load_tokenizer(options.tokenizer)
        pipeline = build_pipeline(tokenizer, options.kind, seed=options.seed)
        chat = Chat(pipeline, stock(pipeline), AREAS)
        exam = Exam(pipeline, options.kind, options.heldout, options.seed, self.executor)
        cases = make_cases(self.executor, options.kind, options.cases, "train", options.seed)
        self.note("cases", count=len(cases))
        taught = lessons(chat, cases, options)
        taught = type(taught)(
            taught.conversations.to(options.device), taught.case.to(options.device)
        )
        self.note("lessons", tokens=list(taught.conversations.tokens.shape))
        model = build_encoder(tokenizer, options.kind, seed=options.seed).to(options.device)
        trainer = WriterTrainer(model, taught, _sources(cases, options.device), options)
        course, parts = self.course(), {}
        for done in course:
            parts = trainer.train_step(done)
            if trainer.step % PARTS_TOLD == 0:
                self.evaluated({"step": trainer.step, **rounded(parts)})
        left = rounded_part(trainer.average)
        written = exam.written(left)
        self.evaluated(
            {
                "step": trainer.step,
                "seconds": round(course.seconds, 1),
                **rounded(parts),
                "right completions": round(exam.right_words(written), 4),
            }
        )
        for index in range(min(8, options.heldout)):
            self.note("wrote", asked=exam.riddles[index], wrote=written.texts[index])
        save_part(left, options.out / ENCODER)
        tokenizer.save_pretrained(options.out / TOKENIZER)
        _keep(self)


class PainterPretraining(Pretraining[PainterOptions]):
    """Leaves the best pipeline, by the pictures of true completions."""

    reserve = 12.0

    def run(self) -> None:
        options = self.options
        self.best = -1.0
        self.record["parts"] = {
            name: read_record(folder)
            for name, folder in (("autoencoder", options.autoencoder), ("writer", options.writer))
        }
        self.pipeline = self._pipeline()
        self._prepare_exam()
        pictures, told = self._taught()
        self._train(PainterTrainer(self.pipeline.transformer, pictures, told, options))

    def _prepare_exam(self) -> None:
        """All but the pictures, which is the same at every evaluation."""
        options, encoder = self.options, self.pipeline.text_encoder
        self.exam = Exam(self.pipeline, options.kind, options.heldout, options.seed, self.executor)
        written = self.exam.written(encoder)
        self.texts, self.ways = written.texts, self.exam.ways(encoder, written)
        self.record["right completions"] = round(self.exam.right_words(written), 4)
        self.record["ceiling"] = self.exam.round_trip()
        self.note("exam", words=self.record["right completions"], ceiling=self.record["ceiling"])

    def _taught(self) -> tuple[Pictures, Conditions]:
        """What the transformer learns from, on the device."""
        options, device, vae = self.options, self.options.device, self.pipeline.vae
        cases = make_cases(self.executor, options.kind, options.cases, "train", options.seed)
        self.note("cases", count=len(cases))
        chat = Chat(self.pipeline, stock(self.pipeline), AREAS)
        said = tellings(cases.plain, chat.edits, options.tellings, options.seed)
        sources = _sources(cases, device)
        told = conditions(self.pipeline.text_encoder, chat, said, sources, device)
        self.note("conditions", embeds=list(told.embeds.shape))
        targets = autoencoder.encode(vae, torch.from_numpy(cases.images).to(device))
        before = None if sources is None else autoencoder.encode(vae, sources)
        return Pictures(targets, before), told

    def _pipeline(self) -> Any:
        options = self.options
        tokenizer = load_tokenizer(options.writer / TOKENIZER)
        encoder = Qwen2_5_VLForConditionalGeneration.from_pretrained(
            options.writer / ENCODER, dtype=torch.float32, attn_implementation="sdpa"
        )
        vae = AutoencoderKLQwenImage.from_pretrained(options.autoencoder, subfolder=AUTOENCODER)
        if options.start is None:
            sizes = Sizes(painter_layers=options.layers)
            transformer = build_transformer(sizes, options.seed)
        else:
            transformer = QwenImageTransformer2DModel.from_pretrained(
                options.start, subfolder="transformer"
            )
        for part in (encoder, vae, transformer):
            part.requires_grad_(False).eval()
        pipeline = assemble(options.kind, tokenizer, encoder, vae, transformer)
        return pipeline.to(options.device)

    def _train(self, trainer: PainterTrainer) -> None:
        options, losses, course, evaluated = self.options, [], self.course(), 0.0
        self.note("training starts")
        for done in course:
            losses.append(trainer.train_step(done))
            if trainer.step % 50 == 0 or trainer.step < 5:
                losses[-1].item()  # the clock tells the truth once the device has caught up
            if trainer.step in (1, 10, 100, 1000):
                self.note("step", step=trainer.step, loss=losses[-1].item())
            if course.seconds - evaluated > options.evaluate_seconds:
                self._evaluate(trainer, losses, course.seconds)
                losses, evaluated = [], course.seconds
        self._evaluate(trainer, losses, course.seconds)

    def _evaluate(self, trainer: PainterTrainer, losses: list[Tensor], seconds: float) -> None:
        """With the weights that a snapshot has; the best is saved."""
        transformer = rounded_part(trainer.average)
        entry: dict[str, Any] = {"step": trainer.step, "seconds": round(seconds, 1)}
        if losses:
            entry["loss"] = round(torch.stack(losses).mean().item(), 5)
        found, images, right = self.exam.scores(
            self.ways, lambda given: self.exam.painted(transformer, given)
        )
        entry |= found
        entry["gate"] = failures(found) or "passed"
        self.evaluated(entry)
        if found["true"] >= self.best:
            self.best = found["true"]
            self._save(transformer, entry, self._grid(images, right))
        self.write_log()

    def _grid(self, images: NDArray[np.uint8], right: list[bool]) -> Image.Image:
        """What was asked for, what was painted, and what was written."""
        some = slice(GRID_SAMPLES)
        pairs = zip(right[some], self.texts[some], strict=True)
        notes = [f"{'' if good else 'X '}{text}"[:26] for good, text in pairs]
        return sample_grid(images[some], self.exam.cases.plain[some], notes)

    def _save(self, transformer: nn.Module, entry: dict[str, Any], grid: Image.Image) -> None:
        self.pipeline.register_modules(transformer=transformer)
        folder = self.options.out / BEST
        save_pipeline(self.pipeline, folder)
        describe_snapshot(folder, grid, self.snapshot_record(entry))


def _sources(cases: Cases, device: str) -> Tensor | None:
    return None if cases.sources is None else torch.from_numpy(cases.sources).to(device)


def _keep(training: Pretraining[Any]) -> None:
    """The record of a part, beside it."""
    record = training.snapshot_record(training.curve[-1])
    write_json(training.options.out / RECORD, record)
    training.write_log()


def _quietly(kind: type[Pretraining[Any]], options: Any) -> None:
    diffusers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    run_pretraining(kind, options)
