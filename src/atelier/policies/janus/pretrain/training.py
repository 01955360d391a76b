"""Training of all but the image tokenizer, on batches of every task at once."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import JanusForConditionalGeneration

from atelier.policies.janus.pretrain import network
from atelier.policies.janus.pretrain.network import Batch
from atelier.policies.janus.pretrain.options import Options
from atelier.policies.janus.pretrain.sequences import DRAWING, SEEING, Table, Task, widen
from atelier.policies.pretraining.compute import (
    Recorded,
    adamw,
    autocast,
    compiled,
    decayed,
    follow,
    set_rate,
)

# Tasks whose conversations are about as long go through the model together.
GROUPS: tuple[tuple[Task, ...], ...] = (("draw", *SEEING), ("redraw", "edit"))
TASKS: tuple[Task, ...] = tuple(task for group in GROUPS for task in group)
MULTIPLE = 8  # lengths are a multiple of it
LEAST_RATE = 0.05  # of the learning rate, at the end


@dataclass
class Bank:
    """All images, by number: uint8 [M, H, W, 3] as they are and as the tokenizer gives them back,
    and their codes [M, N]. `of_cases` of them are of cases, the rest are the model's own."""

    sharp: Tensor
    decoded: Tensor
    codes: Tensor
    of_cases: int


class Draws:
    """Conversations of one task on the device; those about the model's own images are half."""

    def __init__(self, table: Table, length: int, pad: int, device: torch.device) -> None:
        self._length, self._pad, self._device = length, pad, device
        self._tables = [self._moved(table)]
        self.width = int((table.target[:, 1] - table.target[:, 0]).max())

    def set_own(self, table: Table) -> None:
        """Replace those about the model's own images."""
        self._tables = [self._tables[0], self._moved(table)]
        own = int((table.target[:, 1] - table.target[:, 0]).max())
        if own > self.width:
            raise ValueError(f"an answer of {own} tokens, longer than the {self.width} there were")

    def next(self, count: int, generator: torch.Generator) -> dict[str, Tensor]:
        drawn = []
        for parts, own in zip(self._tables, _halves(count, len(self._tables)), strict=True):
            rows = len(parts["tokens"])
            index = torch.randint(rows, (own,), generator=generator, device=self._device)
            drawn.append({name: value[index] for name, value in parts.items()})
        return {name: torch.cat([part[name] for part in drawn]) for name in drawn[0]}

    def _moved(self, table: Table) -> dict[str, Tensor]:
        wide = widen(table, self._length, self._pad)
        return {
            name: torch.from_numpy(value).to(self._device) for name, value in wide.parts().items()
        }


class Trainer:
    """Trains `model` on a bank of images; `average` is the moving average of its weights."""

    def __init__(
        self,
        model: JanusForConditionalGeneration,
        bank: Bank,
        tables: dict[Task, Table],
        pad: int,
        options: Options,
    ) -> None:
        self.model, self.bank, self.step = model, bank, 0
        self.options, self._pad = options, pad
        self._device = bank.codes.device
        self._generator = torch.Generator(self._device).manual_seed(options.seed + 1)
        self.draws = {
            task: Draws(tables[task], _length(tables, group), pad, self._device)
            for group in GROUPS
            for task in group
        }
        self._trained = [value for value in model.parameters() if value.requires_grad]
        self.average = copy.deepcopy(model).eval().requires_grad_(False)
        self._averaged = [
            mean
            for mean, value in zip(self.average.parameters(), model.parameters(), strict=True)
            if value.requires_grad
        ]
        groups = decayed(self._trained, options.weight_decay)
        self._optimizer = adamw(groups, (0.9, 0.98), self._device)
        self._block = compiled(network.decoder_block, options.compile)
        self._sums = torch.zeros(len(TASKS), device=self._device)
        self._summed = 0
        self._update = self._recorded()

    def train_step(self, done: float) -> None:
        """One update.

        Args:
            done: share of the training that is over; the learning rate falls over its last part.
        """
        options = self.options
        warm = min(1.0, (self.step + 1) / options.warmup_steps)
        rest = min(1.0, (1 - done) / options.cooldown) if options.cooldown else 1.0
        set_rate(self._optimizer, options.learning_rate * warm * max(rest, LEAST_RATE))
        self._update()
        self.step += 1
        self._summed += 1
        follow(self._averaged, self._trained, options.ema_decay, self.step)

    def losses(self) -> dict[Task, float]:
        """Means since the last call."""
        means = (self._sums / max(self._summed, 1)).tolist()
        self._sums.zero_()
        self._summed = 0
        return {task: round(mean, 4) for task, mean in zip(TASKS, means, strict=True)}

    def set_own(self, tables: dict[Task, Table]) -> None:
        """Replace the conversations about the model's own images."""
        for task, table in tables.items():
            self.draws[task].set_own(table)
        self._update = self._recorded()

    def _recorded(self) -> Recorded:
        return Recorded(self._one_step, self._generator, self.options.record)

    def _one_step(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        for tasks in GROUPS:
            batches = {task: self._batch(task, getattr(self.options, task)) for task in tasks}
            with autocast(self.bank.codes):
                found = self._losses(batches)
            values = torch.stack(list(found.values()))
            values.sum().backward()
            for task, value in zip(tasks, values.detach(), strict=True):
                self._sums[TASKS.index(task)] += value
        nn.utils.clip_grad_norm_(self._trained, self.options.clip_norm)
        self._optimizer.step()

    def _losses(self, batches: dict[Task, Batch]) -> dict[Task, Tensor]:
        embedded = network.embed(self.model, list(batches.values()))
        if embedded.is_cuda:
            embedded = embedded.bfloat16()
        places = torch.cat([one.places for one in batches.values()])
        hidden = network.read(self.model, embedded, places, self._block)
        parts = hidden.split([len(one.tokens) for one in batches.values()])
        return {
            task: network.loss(self.model, part, batch)
            for (task, batch), part in zip(batches.items(), parts, strict=True)
        }

    def _batch(self, task: Task, count: int) -> Batch:
        parts = self.draws[task].next(count, self._generator)
        tokens = parts["tokens"].long()
        if task in DRAWING:
            tokens = self._without_prompts(tokens, parts["prompt"])
        given, drawn = parts["given"].long(), parts["drawn"].long()
        return Batch(
            tokens=tokens,
            places=parts["places"].long(),
            target=parts["target"].long(),
            width=self.draws[task].width,
            pictures=self._pictures(given) if task in SEEING else None,
            given=self.bank.codes[given].long() if task in ("redraw", "edit") else None,
            drawn=self.bank.codes[drawn].long() if task in DRAWING else None,
        )

    def _without_prompts(self, tokens: Tensor, prompt: Tensor) -> Tensor:
        """Some rows with pads in place of the prompt: `Context.without_prompt`."""
        shape = (len(tokens), 1)
        chance = torch.rand(shape, generator=self._generator, device=self._device)
        place = torch.arange(tokens.shape[1], device=self._device)
        within = (prompt[:, :1] <= place) & (place < prompt[:, 1:])
        return tokens.masked_fill(within & (chance < self.options.prompt_dropout), self._pad)

    def _pictures(self, numbers: Tensor) -> Tensor:
        """Half of them as the tokenizer gives them back: such are those it will judge."""
        shape = (len(numbers), 1, 1, 1)
        chance = torch.rand(shape, generator=self._generator, device=self._device)
        return torch.where(chance < 0.5, self.bank.decoded[numbers], self.bank.sharp[numbers])


def _halves(count: int, parts: int) -> list[int]:
    return [count] if parts == 1 else [count - count // 2, count // 2]


def _length(tables: dict[Task, Table], group: tuple[Task, ...]) -> int:
    longest = max(tables[task].tokens.shape[1] for task in group)
    return -(-longest // MULTIPLE) * MULTIPLE
