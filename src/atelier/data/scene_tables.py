"""Prompt tables of the scene world: as many prompts as asked for, all different."""

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal, Protocol

from atelier.config.suite_data import scene_pairs
from atelier.data.compound_edits import compound_edit
from atelier.data.edit_rows import compound_prompt, edit_prompt
from atelier.data.edits import edit
from atelier.data.graph_rows import graph_prompt
from atelier.data.keys import key
from atelier.data.prompts import Prompt, PromptSet, TablesConfig
from atelier.data.riddles import riddle
from atelier.data.scene_graphs import DISCIPLINES, sample_graph
from atelier.data.scene_pairs import difference, partner
from atelier.data.scenes import Kind, Scene, Split, prompt, sample_scene, to_dict
from atelier.errors import DataError
from atelier.mmmg.benchmark import TIERS

Task = Literal["draw", "edit", "graph"]
Wording = Literal["plain", "riddle"]
SPLITS: tuple[Split, ...] = ("train", "heldout")
FRUITLESS_DRAWS = 500  # so many in a row without a new prompt: there are no more


class ScenesConfig(TablesConfig, Protocol):
    """What of the section `data` says which scenes (atelier.config.sections.data)."""

    @property
    def scene_kind(self) -> Kind: ...
    @property
    def scene_task(self) -> Task: ...
    @property
    def scene_wording(self) -> Wording: ...
    @property
    def scene_tiers(self) -> int: ...
    def levels_for(self, source: str) -> tuple[int, ...]: ...
    @property
    def scene_pairs(self) -> float: ...


class TooFewScenes(DataError):
    """A split has fewer different prompts than are asked for; `found` is how many it has."""

    def __init__(self, config: ScenesConfig, split: Split, found: int) -> None:
        wanted = config.train_prompts if split == "train" else config.heldout_prompts
        self.key, self.found = f"{split}_prompts", found
        super().__init__(
            f"data.{self.key} {wanted}: {_world(config)} holds too few different prompts, {found}"
        )


def scene_tables(config: ScenesConfig) -> tuple[PromptSet, PromptSet]:
    """The training and the held-out table.

    Raises:
        DataError: there are not so many different prompts: of one split or of both, with the
            numbers that work.
    """
    found: list[PromptSet] = []
    lacking: list[TooFewScenes] = []
    for split in SPLITS:
        try:
            found.append(scene_table(config, split))
        except TooFewScenes as error:
            lacking.append(error)
    if lacking:
        if not all(one.found for one in lacking):
            raise DataError(f"{'; '.join(map(str, lacking))}; choose other scenes")
        works = " ".join(f"--set data.{one.key}={one.found}" for one in lacking)
        raise DataError(f"{'; '.join(map(str, lacking))}; use {works}")
    train, heldout = found
    return train, heldout


def scene_table(config: ScenesConfig, split: Split) -> PromptSet:
    """The table of a split: first the pairs, `scene_pairs` of the prompts, then single prompts; or
    edits or graphs alone (`scene_task`).

    Without pairs the first n of a larger set are the set of n. Metadata: "scene", "target" (its
    word, where it has one), and of a pair those of `rows` and "category", what is different; of an
    edit those of `edit_rows`, of a graph those of `graph_rows`. An edit is of the split of the
    scene that it changes. Edits take turns through levels, graphs through tiers and disciplines.
    Of a riddle (`scene_wording`) metadata have "plain", the words that solve it.

    Raises:
        TooFewScenes: there are not so many different prompts.
    """
    wanted = config.train_prompts if split == "train" else config.heldout_prompts
    pairs = scene_pairs(config.scene_pairs, wanted)
    seen: set[str] = set()
    found: list[Prompt] = []

    def draw(what: str, count: int, make: Callable[[random.Random], list[Prompt]]) -> None:
        """Add what is new among the draws until there are `count` prompts."""
        attempt = last_new = 0
        while len(found) < count and attempt - last_new < FRUITLESS_DRAWS:
            rng = random.Random(key(what, config.seed, config.scene_kind, split, attempt))
            attempt += 1
            made = make(rng)
            if made and seen.isdisjoint(map(_asked, made)):
                seen.update(map(_asked, made))
                found.extend(_numbered(made, len(found)))
                last_new = attempt
        if len(found) < count:
            raise TooFewScenes(config, split, len(found))

    if config.scene_task == "edit":
        draw("scene edit", wanted, lambda rng: [_edit(config, split, len(found), rng)])
    elif config.scene_task == "graph":
        draw("scene graph", wanted, lambda rng: [_graph(config, split, len(found), rng)])
    else:
        draw("scene pair", 2 * pairs, lambda rng: _pair(config.scene_kind, split, rng))
        draw("scene", wanted, lambda rng: [_single(sample_scene(rng, config.scene_kind, split))])
    return _worded(found, split, config.scene_wording)


def _worded(found: Iterable[Prompt], split: Split, wording: Wording) -> PromptSet:
    """The table in the wording that was asked for."""
    if wording == "plain":
        return PromptSet(tuple(found), split)
    return PromptSet(tuple(_as_riddle(one) for one in found), split)


def _as_riddle(one: Prompt) -> Prompt:
    metadata = {**one.metadata, "plain": one.text}
    if "partner" in metadata:
        metadata["partner"] = riddle(metadata["partner"])
    return replace(one, text=riddle(one.text), metadata=metadata)


def _world(config: ScenesConfig) -> str:
    """The settings that say which scenes there are."""
    words = [f"scene_kind {config.scene_kind}"]
    if config.scene_task != "draw":
        words.append(f"scene_task {config.scene_task}")
    if config.scene_task == "graph":
        words.append(f"scene_tiers {config.scene_tiers}")
    if config.scene_task == "edit":
        words.append(f"edit_levels {','.join(map(str, config.levels_for('scenes')))}")
    if config.scene_pairs:
        words.append(f"scene_pairs {config.scene_pairs:g}")
    return ", ".join(words)


def _single(scene: Scene) -> Prompt:
    metadata: dict[str, Any] = {"scene": to_dict(scene)}
    if scene.word is not None:
        metadata["target"] = scene.word.text
    return Prompt(0, 0, prompt(scene), metadata)


def _pair(kind: Kind, split: Split, rng: random.Random) -> list[Prompt]:
    """Both prompts, either of them first; empty where no partner is found."""
    scene = sample_scene(rng, kind, split)
    other = partner(scene, split, rng)
    if other is None:
        return []
    category = difference(scene, other)
    scenes = [scene, other] if rng.random() < 0.5 else [other, scene]
    prompts = [_single(one) for one in scenes]
    for place, one in enumerate(prompts):
        one.metadata.update(caption=place + 1, partner=prompts[1 - place].text, category=category)
    return prompts


def _edit(config: ScenesConfig, split: Split, place: int, rng: random.Random) -> Prompt:
    """Levels take turns through the table."""
    levels = config.levels_for("scenes")
    level = levels[place % len(levels)]
    if level == 1:
        return edit_prompt(edit(sample_scene(rng, config.scene_kind, split), rng))
    return compound_prompt(compound_edit(rng, level, split))


def _graph(config: ScenesConfig, split: Split, place: int, rng: random.Random) -> Prompt:
    """Tiers and disciplines take turns through the table."""
    cells = [(tier, one) for tier in TIERS[: config.scene_tiers] for one in DISCIPLINES]
    return graph_prompt(sample_graph(rng, *cells[place % len(cells)], split))


def _asked(one: Prompt) -> str:
    """Equal for prompts that ask for the same: the text, of an edit with what it changes."""
    source = one.metadata.get("source_scene")
    return one.text if source is None else f"{one.text} {json.dumps(source, sort_keys=True)}"


def _numbered(made: list[Prompt], first: int) -> list[Prompt]:
    """The prompts with their place in the table; a pair's number is that of its first."""
    pair = {"pair": first // 2} if len(made) == 2 else {}
    return [
        Prompt(first + place, 0, one.text, {**one.metadata, **pair})
        for place, one in enumerate(made)
    ]
