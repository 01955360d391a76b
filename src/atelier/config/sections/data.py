"""Where prompts come from, and how many."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atelier.config.prompt_files import PromptFormat, PromptSource
from atelier.config.sections.base import Fraction, NonNegativeInt, PositiveInt, Section, operational
from atelier.config.sections.complex_edit import Licence
from atelier.config.sections.curriculum import CurriculumConfig
from atelier.config.sections.datasets import DatasetConfig, DatasetName, SamplingMode
from atelier.config.sections.edit_levels import MOST, EditLevels, levels_of
from atelier.config.sections.sft import PicturesConfig


class DataConfig(Section):
    """Which prompts are trained on and which are held out."""

    source: PromptSource = Field(
        "scenes",
        description="The embedded scene world, the format of the prompt file, or a mixture of both "
        "(data.datasets).",
    )
    path: str | None = Field(
        None,
        description="Prompt file, or folder with one; required unless source is scenes or mixture.",
    )
    heldout_path: str | None = Field(
        None,
        description="Held-out prompt file or folder; without it a folder's own test file is held "
        "out, and a file's prompts are split by content.",
    )
    heldout_source: PromptFormat | None = Field(
        None, description="Format of heldout_path; default: source."
    )
    unpaired_path: str | None = Field(
        None, description="Plain prompt file whose prompts are added to the pairs of path."
    )
    scene_kind: Literal["word", "shapes", "mixed"] = Field(
        "word", description="Kind of scene to sample (source: scenes)."
    )
    scene_task: Literal["draw", "edit", "graph"] = Field(
        "draw",
        description="draw: prompts ask for scenes; edit: for a change of one; graph: for shapes "
        "and how they stand to each other, with a knowledge graph (source: scenes; edit and graph: "
        "scene_kind: shapes).",
    )
    scene_wording: Literal["plain", "riddle"] = Field(
        "plain",
        description="plain: prompts name colours and shapes; riddle: what these are known for, "
        "which a completion may say in plain words (source: scenes).",
    )
    scene_tiers: Annotated[int, Field(ge=1, le=6)] = Field(
        6,
        description="Tiers of difficulty that graphs are of, from the easiest of six "
        "(scene_task: graph).",
    )
    edit_levels: EditLevels | None = Field(
        None,
        description="Levels of instructions, in turn: how many atomic edits, 1 to 8, one asks for; "
        '"8", "1-8" or "1,3,5". Default: 1 of scenes (scene_task: edit), 1-8 of complex_edit.',
    )
    accept_licence: Licence | None = operational(
        None,
        "Licence of published data that you have read and keep to: cc-by-nc-4.0, for research and "
        "other uses that are not commercial. Required for source complex_edit.",
    )
    scene_pairs: Fraction = Field(
        0.0,
        description="Share of the prompts that come in pairs, two that differ in one thing "
        "(source: scenes).",
    )
    malformed_rows: Literal["refuse", "leave_out"] = Field(
        "refuse",
        description="What becomes of rows that cannot be read: the file is refused with all of "
        "them named; or they are left out, counted and named in the summary (unigenbench, and "
        "deepgen_eval with such files).",
    )
    train_prompts: PositiveInt = Field(
        2048,
        description="Training prompts to keep or generate; of a mixture, of each data set that "
        "does not say it itself.",
    )
    heldout_prompts: PositiveInt = Field(
        256, description="Held-out prompts to keep or generate, likewise."
    )
    seed: NonNegativeInt = Field(0, description="Seed of the generated scenes and of the split.")
    datasets: dict[DatasetName, DatasetConfig] = Field(
        default={}, description="Data sets by names of yours (source: mixture)."
    )
    sampling_mode: SamplingMode = Field(
        "sample_proportional",
        description="What a sample_weight multiplies (source: mixture): sample_proportional: the "
        "share that a data set has by its size; weight_only: nothing, whatever its size.",
    )
    curriculum: CurriculumConfig = CurriculumConfig()
    sft: PicturesConfig = PicturesConfig()

    def parts(self) -> dict[str, DataConfig]:
        """The data sets of a mixture by name, each as data by itself."""
        if self.source != "mixture":
            return {}
        own = {
            "train_prompts": self.train_prompts,
            "heldout_prompts": self.heldout_prompts,
            "seed": self.seed,
            "malformed_rows": self.malformed_rows,
        }
        mixing = {"sample_weight", "rewards"}
        return {
            name: DataConfig(**own | one.model_dump(exclude=mixing, exclude_none=True))
            for name, one in self.datasets.items()
        }

    @property
    def most_train_prompts(self) -> int:
        """Training prompts that are kept or generated at most."""
        return sum(one.train_prompts for one in self.parts().values()) or self.train_prompts

    @property
    def most_heldout_prompts(self) -> int:
        """Held-out prompts that are kept or generated at most."""
        return sum(one.heldout_prompts for one in self.parts().values()) or self.heldout_prompts

    def levels_for(self, source: str) -> tuple[int, ...]:
        """The levels of instructions of a source, ascending."""
        return levels_of(self.edit_levels or ("1" if source == "scenes" else f"1-{MOST}"))
