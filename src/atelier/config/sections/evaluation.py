"""How held-out images are made and scored."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atelier.config.sections.base import Guidance, NonNegativeInt, PositiveInt, Section, operational
from atelier.config.sections.completion import EvaluatedCompletions
from atelier.config.sections.questions import Asked
from atelier.config.sections.rewards import OcrConfig
from atelier.config.sections.suites import (
    ComplexEditSuiteConfig,
    EditingConfig,
    MmmgSuiteConfig,
    PairCompConfig,
    UniGenBenchConfig,
    YesNoSuiteConfig,
)

SuiteName = Literal[
    "ocr", "scenes", "yes_no", "paircomp", "editing", "mmmg", "complex_edit", "unigenbench"
]
_IMAGES_OF_A_PROMPT = {"paircomp": 2, "unigenbench": 4}  # as published


class EvaluationConfig(Section):
    """Held-out evaluation, before, during and after training."""

    suite: SuiteName = Field(
        "ocr",
        description="ocr: words that are read in the images. scenes: facts that the exact checker "
        "finds. yes_no: what a judge says of any prompts. paircomp: pairs of captions. editing: "
        "edited images. mmmg: knowledge graphs. complex_edit: edited images, by level. "
        "unigenbench: test points of prompts.",
    )
    prompts: PositiveInt = Field(256, description="Held-out prompts of baseline and final.")
    periodic_prompts: PositiveInt = Field(64, description="Held-out prompts of a periodic one.")
    images_per_prompt: PositiveInt | None = Field(
        None,
        description="Images of each prompt; default: 4 for unigenbench, 2 for paircomp, else 1.",
    )
    num_inference_steps: PositiveInt = Field(8, description="Denoising steps (deterministic ODE).")
    guidance_scale: Guidance = Field(
        1.0, description="Classifier-free guidance of the evaluated images."
    )
    seed: NonNegativeInt = Field(0, description="Seed of the fixed noise, one draw an image.")
    completions: EvaluatedCompletions = Field(
        "own",
        description="Of a policy that writes, what images are made of besides the prompt: what it "
        "writes; none: nothing; shuffled: what it writes to another prompt of the same batch.",
    )
    micro_batch_size: PositiveInt = Field(16, description="Images generated together.")
    ocr: OcrConfig = Field(
        OcrConfig(), description="How the suite reads text, in process; independent of the reward."
    )
    yes_no: YesNoSuiteConfig = YesNoSuiteConfig()
    paircomp: PairCompConfig = PairCompConfig()
    editing: EditingConfig = EditingConfig()
    mmmg: MmmgSuiteConfig = MmmgSuiteConfig()
    complex_edit: ComplexEditSuiteConfig = ComplexEditSuiteConfig()
    unigenbench: UniGenBenchConfig = UniGenBenchConfig()
    judge_deadline: Annotated[float, Field(gt=0, le=604_800)] = operational(
        1800.0,
        "Seconds for which a suite's judge that cannot be reached is asked again; then the stage "
        "stops, resumable.",
    )
    bootstrap_samples: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        10_000, description="Resamples of the paired bootstrap intervals."
    )

    @property
    def images_of_a_prompt(self) -> int:
        return self.images_per_prompt or _IMAGES_OF_A_PROMPT.get(self.suite, 1)

    @property
    def judge(self) -> str | None:
        """Which of `judges` the suite asks; None where it asks none."""
        return self.judges_of_suites.get(self.suite)

    def asked_by(self, suite: str) -> Asked:
        """What a suite that may ask a judge asks it about one image."""
        asked: Asked = getattr(self, suite).asked
        return asked

    @property
    def judges_of_suites(self) -> dict[str, str | None]:
        """Which each suite that may ask one would ask."""
        return {
            "yes_no": self.yes_no.judge,
            "paircomp": self.paircomp.judge,
            "editing": self.editing.judge,
            "mmmg": self.mmmg.judge,
            "complex_edit": self.complex_edit.judge,
            "unigenbench": self.unigenbench.judge,
        }
