"""The sections of `rewards:`, and how the text in an image is read.

A reward's section says what is scored (which shapes training) and, by `RewardSection`, where: in
the trainer, in a service that the run starts and watches, or in one that others run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from atelier.config.patterns import pattern_problem
from atelier.config.sections.base import (
    Factor,
    Fraction,
    NonNegativeInt,
    PositiveFloat,
    Section,
    operational,
)
from atelier.config.sections.complex_edit import ComplexEditMeasure
from atelier.config.sections.mmmg import MmmgMeasure
from atelier.config.sections.questions import Asked, PromptQuestion
from atelier.config.sections.regions import RegionsConfig
from atelier.config.sections.servers import Few, Placed, Placement, secret_conflicts

# Sums are kept as float32, and more than this against a weight of 1 leaves nothing of the other.
RewardName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")]
Weight = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
Gate = Literal["none", "product", "min"]
_FACTS = 4  # of an edit that are asked about, about as many
# The question that any prompt can be put into.
SHOWS = "Does this image show {prompt}? Answer yes or no."


class RewardSection(Placed):
    """What every reward has in common: its weight, and where its scores are made."""

    weight: Weight = Field(
        1.0, description="Weight in the sum, at most 1e6 either way; 0 only logs."
    )
    placement: Placement = operational(
        "in_process",
        "in_process: in the trainer; managed: in services the run starts, watches and stops; "
        "remote: in services at `urls`.",
    )
    workers: Few = operational(1, "Scoring threads of a trainer process, or of a service.")
    timeout: PositiveFloat = operational(
        120.0, "Seconds a service may take for one batch before it is asked again."
    )

    def needs_whole_groups(self) -> bool:
        """Whether its scores compare the images of a group, so that it must be given all of it."""
        return False


class JudgedSection(RewardSection):
    """A reward that a judge is asked for."""

    judge: str = Field(min_length=1, description="Which of `judges` is asked.")

    def asked_of_an_image(self, group_size: int) -> Asked:
        """What the judge is asked for an image's score.

        Args:
            group_size: images that it is compared with, itself among them.
        """
        return Asked()


class CustomRewardConfig(RewardSection):
    """A reward of your own, or one whose packages need an environment of their own."""

    function: FunctionName = Field(
        description="`module:name` of a function or a class; see docs/extending.md."
    )
    parameters: dict[str, JsonValue] = Field(
        default={}, description="Given to it as keyword arguments."
    )
    whole_groups: bool = Field(
        False, description="It compares the images of a group, so it is given all of them at once."
    )

    def conflicts(self) -> Iterator[tuple[str, str]]:
        yield from super().conflicts()
        yield from secret_conflicts(self.parameters)

    def needs_whole_groups(self) -> bool:
        return self.whole_groups


class YesNoConfig(JudgedSection):
    """P(yes) of a judge to one question or several, as FocusDiff and Janus-Pro-R1 ask it."""

    questions: dict[str, str] = Field(
        default={"shows": SHOWS},
        min_length=1,
        description="Name and text; {prompt} is the image's. With several, the mean counts.",
    )
    show_source: bool = Field(
        False, description="The edited (source) image is shown first, as image 1."
    )

    def asked_of_an_image(self, group_size: int) -> Asked:
        return Asked(len(self.questions), pictures=1 + self.show_source, in_words=False)


class VlmOcrConfig(JudgedSection):
    """Similarity of the text that a judge reads in the image to the target."""

    question: str = Field(
        "Which text is in this image? Answer with that text alone: no description, no quotation "
        "marks. If there is none, answer [no text].",
        min_length=1,
        description="What the judge is asked.",
    )
    no_text: str = Field(
        "[no text]", min_length=1, description="The answer that says that there is no text."
    )


class UnifiedRewardConfig(JudgedSection):
    """A judge's mark for one image, 1 to 5 (UnifiedReward)."""

    form: Literal["final_score", "dimensions"] = Field(
        "final_score",
        description="One mark after `Final Score:`, or the mean of two, for alignment and style.",
    )
    question: str | None = Field(
        None, description="What the judge is asked; {prompt} is the image's. Default: of the form."
    )
    scale: Literal["fifths", "raw"] = Field(
        "fifths",
        description="fifths: marks divided by 5, 0.2 to 1; raw: 1 to 5, as published for "
        "dimensions.",
    )


class UnifiedRewardThinkConfig(JudgedSection):
    """Share of the comparisons in its group that an image wins (UnifiedReward-Think)."""

    form: Literal["verdict", "p_yes"] = Field(
        "verdict",
        description="verdict: the judge sees both images of a pair and says which is better; "
        "p_yes: it sees each image alone, and of two the one with the higher P(yes) wins.",
    )
    question: str | None = Field(
        None,
        min_length=1,
        description="What the judge is asked about two images, or about one (p_yes); {prompt} is "
        "theirs. Default: of the form.",
    )
    both_orders: bool = Field(
        True,
        description="Each pair is asked about in both orders, so that a liking for the first place "
        "cancels out, and counts where both were answered; false asks half as often (verdict).",
    )
    min_answered_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="Share of an image's comparisons that must be answered, else it has none."
    )

    def needs_whole_groups(self) -> bool:
        return True

    def asked_of_an_image(self, group_size: int) -> Asked:
        if self.form == "p_yes":
            return Asked(in_words=False)
        return Asked((group_size - 1) * (1.0 if self.both_orders else 0.5), pictures=2)


class ComplexEditConfig(JudgedSection, ComplexEditMeasure):
    """A judge's marks for an edited image, 0 to 10: instruction following (IF), identity
    preservation (IP), perceptual quality (PQ), as Complex-Edit has them."""

    if_weight: Factor = Field(0.4, description="Weight of IF / 10.")
    ip_weight: Factor = Field(0.3, description="Weight of IP / 10, behind the gate.")
    pq_weight: Factor = Field(0.3, description="Weight of PQ / 10, behind the gate.")
    gate: Gate = Field(
        "product",
        description="What IP / 10 and PQ / 10 count as: none: themselves (published); product: "
        "times IF / 10; min: no more than IF / 10. An image that was not edited at all has IP 10 "
        "and its source's PQ.",
    )

    def conflicts(self) -> Iterator[tuple[str, str]]:
        yield from super().conflicts()
        if not self.if_weight + self.ip_weight + self.pq_weight:
            yield "if_weight", "all three weights are 0, so every score would be 0"

    def asked_of_an_image(self, group_size: int) -> Asked:
        return self.asked


class EditQuestions(Section):
    """What a judge is asked about an edited image, for P(yes)."""

    about: Literal["instruction", "facts"] = Field(
        "instruction",
        description="instruction: source and edited image are shown with the questions below; "
        "facts: the edited image alone, with the questions of the data (metadata following and "
        "preserving; of scenes they are made).",
    )
    following_question: PromptQuestion = Field(
        "The second image is an edit of the first. The instruction was: {prompt}. Does the second "
        "image do what it says? Answer yes or no.",
        min_length=1,
        description="{prompt} is the instruction.",
    )
    preserving_question: str = Field(
        "The second image is an edit of the first. The instruction was: {prompt}. Is everything "
        "that it does not name the same in both images? Answer yes or no.",
        min_length=1,
        description="{prompt} is the instruction.",
    )

    @property
    def asked(self) -> Asked:
        """About one edited image; how many facts there are, its prompt says."""
        if self.about == "instruction":
            return Asked(questions=2, pictures=2, in_words=False)
        return Asked(questions=_FACTS, in_words=False, is_exact=False)


class EditYesNoConfig(JudgedSection, EditQuestions):
    """P(yes) of a judge to whether an edit follows its instruction, and keeps the rest, as
    Janus-Pro-R1 asks it."""

    following_weight: Factor = Field(1.0, description="Weight of following.")
    preserving_weight: Factor = Field(0.25, description="Weight of preserving.")
    gate: Gate = Field(
        "none",
        description="What preserving counts as: itself (published); its product with following; "
        "the lesser of both. A copy of the source preserves everything.",
    )

    def conflicts(self) -> Iterator[tuple[str, str]]:
        yield from super().conflicts()
        if not self.following_weight + self.preserving_weight:
            yield "following_weight", "both weights are 0, so every score would be 0"

    def asked_of_an_image(self, group_size: int) -> Asked:
        return self.asked


class SceneEditConfig(RewardSection):
    """Whether an edit of a scene follows its instruction, and keeps the rest, by the exact checker
    in the place of a judge."""

    following_weight: Factor = Field(0.5, description="Weight of following.")
    preserving_weight: Factor = Field(0.5, description="Weight of preserving.")
    gate: Gate = Field(
        "product",
        description="What preserving counts as: itself; its product with following; the lesser of "
        "both. A copy of the source preserves everything.",
    )

    def conflicts(self) -> Iterator[tuple[str, str]]:
        yield from super().conflicts()
        if not self.following_weight + self.preserving_weight:
            yield "following_weight", "both weights are 0, so every score would be 0"


class MmmgConfig(JudgedSection, MmmgMeasure):
    """How much of its knowledge graph a judge sees in an image, times how readable the image is
    (MMMG)."""

    def conflicts(self) -> Iterator[tuple[str, str]]:
        yield from super().conflicts()
        yield from self.region_conflicts()

    def asked_of_an_image(self, group_size: int) -> Asked:
        return self.asked


class SceneGraphConfig(RewardSection):
    """The same of graphs of the scene world, by the exact checker in the place of a judge."""

    regions: RegionsConfig = Field(
        RegionsConfig(read_text=False), description="How regions are counted, for readability."
    )

    def conflicts(self) -> Iterator[tuple[str, str]]:
        yield from super().conflicts()
        for key, problem in self.regions.conflicts():
            yield f"regions.{key}", problem


class ClipConfig(RewardSection):
    """A CLIP model that runs where the reward is scored."""

    path: str = Field(min_length=1, description="Directory or hub id of the CLIP model.")
    revision: str | None = Field(None, description="Commit, tag or branch of a hub id.")
    device: Literal["auto", "cpu", "cuda"] = operational("auto", "Where it computes.")


class ClipSimilarityConfig(ClipConfig):
    """How close image and prompt are to a CLIP model."""

    path: str = Field(
        "openai/clip-vit-large-patch14",
        min_length=1,
        description="Directory or hub id of the CLIP model.",
    )
    normalization: Literal["cosine", "logit_30", "logit_100"] = Field(
        "cosine",
        description="The cosine itself; or the model's logit divided by 30 (Flow-GRPO) or 100 "
        "(DiffusionNFT).",
    )


class PickScoreConfig(ClipConfig):
    """How much people would prefer the image for its prompt (PickScore)."""

    path: str = Field(
        "yuvalkirstain/PickScore_v1",
        min_length=1,
        description="Directory or hub id of the CLIP model.",
    )
    processor: str = Field(
        "laion/CLIP-ViT-H-14-laion2B-s32B-b79K",
        min_length=1,
        description="Directory or hub id of tokenizer and image processor.",
    )
    normalization: Literal["logit_26", "cosine", "mixgrpo"] = Field(
        "logit_26",
        description="The model's logit / 26 (Flow-GRPO); the cosine itself (DanceGRPO); "
        "(logit - 18) / 8 (MixGRPO).",
    )


class GenevalConfig(RewardSection):
    """GenEval's score of the objects that a detector finds (arXiv 2310.11513)."""

    detector: FunctionName = Field(
        description="`module:name` of a function that finds objects; see docs/rewards.md. "
        "atelier.rewards.scorers.scene_detector:detect finds those of the scene world.",
    )
    parameters: dict[str, JsonValue] = Field(
        default={}, description="Given to the detector as keyword arguments."
    )
    score: Literal["soft", "strict", "official"] = Field(
        "soft",
        description="soft: what Flow-GRPO trains on; strict: everything exactly, or 0; official: "
        "what papers report.",
    )

    def conflicts(self) -> Iterator[tuple[str, str]]:
        yield from super().conflicts()
        yield from secret_conflicts(self.parameters)


class FormatConfig(RewardSection):
    """Whether a completion, the text that a policy wrote, has the form that was asked for."""

    pattern: str = Field(
        # Atomic and possessive: a completion made to be slow would else take quadratic time.
        r"(?s)\s*+<think>(?>.*?</think>\s*+<answer>)(?>.*</answer>)\s*+",
        min_length=1,
        max_length=2000,
        description="Regular expression (of the package `regex`) that the whole completion must "
        "match, within a second.",
    )

    def conflicts(self) -> Iterator[tuple[str, str]]:
        yield from super().conflicts()
        if problem := pattern_problem(self.pattern):
            yield "pattern", problem


class LengthConfig(RewardSection):
    """Whether a completion is as long as was asked for."""

    unit: Literal["words", "characters"] = Field("words", description="What is counted.")
    shortest: NonNegativeInt = Field(0, description="Shortest length that scores 1.")
    longest: NonNegativeInt = Field(100, description="Longest length that scores 1.")
    fall_off: Annotated[float, Field(gt=0, le=1e9)] = Field(
        50.0, description="How far from there the score has fallen to 0, evenly."
    )

    def conflicts(self) -> Iterator[tuple[str, str]]:
        yield from super().conflicts()
        if self.shortest > self.longest:
            yield "shortest", f"{self.shortest} is more than longest, {self.longest}"


class SpansConfig(Section):
    """How quoted texts are looked for in what was read, by DeepGen-RL's newer rule."""

    case_sensitive: bool = Field(True, description="Whether bye is not BYE.")
    kept_signs: Literal["letters", "ascii", "all"] = Field(
        "letters",
        description="What counts of a text: letters, marks and digits of any script; those of "
        "ASCII, as published, which leaves nothing of Chinese; everything but white space.",
    )
    fold_confused: bool = Field(
        True,
        description="Whether signs that readers take for one another are one: 0 o, 1 i j l, 5 s, "
        "v w; capitals are told apart.",
    )
    most_joined: Annotated[int, Field(ge=1, le=20)] = Field(
        3, description="Neighbouring lines that are looked at as one, beside all of them."
    )


class OcrConfig(Section):
    """Text in the image, read by PP-OCR through rapidocr."""

    detect: bool = Field(True, description="Find text boxes first; false reads the whole image.")
    min_confidence: Fraction = Field(0.0, description="Recognised lines below are ignored.")
    box_order: Literal["detected", "reading"] = Field(
        "detected", description="Order of the lines joined: as detected, or top-left first."
    )
    unicode_normalization: Literal["none", "NFKC"] = Field(
        "none", description="Normalisation of both texts before they are compared."
    )
    rule: Literal["target", "spans"] = Field(
        "target",
        description="target: the first quoted text in all that was read, where text around it is "
        "free (Flow-GRPO, DeepGen-RL's old); spans: every quoted text, each in what fits it best "
        "(DeepGen-RL's new).",
    )
    spans: SpansConfig = SpansConfig()
    workers: Few = operational(
        1,
        "Images that a trainer process, or a service, reads at a time; each takes a core, and some "
        "35 MB of main memory, 130 MB with detection.",
    )


class OcrRewardConfig(OcrConfig, RewardSection):
    """Similarity of the text in the image, read by PP-OCR, to the target."""


class JpegConfig(RewardSection):
    """Size of the image as JPEG, labelled by direction."""

    quality: Annotated[int, Field(ge=1, le=100)] = Field(95, description="JPEG quality.")


class RewardsConfig(Section):
    """Rewards that are set are used; their weighted sum is what is trained on."""

    ocr: OcrRewardConfig | None = Field(
        None, description="Similarity of the text read to the target."
    )
    jpeg_compressibility: JpegConfig | None = Field(
        None, description="-kB/500: higher is more compressible."
    )
    jpeg_incompressibility: JpegConfig | None = Field(
        None, description="kB: higher is less compressible."
    )
    clip_similarity: ClipSimilarityConfig | None = Field(
        None, description="CLIP's similarity of image and prompt."
    )
    pick_score: PickScoreConfig | None = Field(
        None, description="PickScore: how much people would prefer the image."
    )
    geneval: GenevalConfig | None = Field(None, description="GenEval's score of what is detected.")
    format: FormatConfig | None = Field(None, description="1 for a completion of the right form.")
    length: LengthConfig | None = Field(None, description="1 for a completion of the right length.")
    yes_no: YesNoConfig | None = Field(None, description="P(yes) of a judge.")
    vlm_ocr: VlmOcrConfig | None = Field(
        None, description="Similarity of the text a judge reads to the target."
    )
    unified_reward: UnifiedRewardConfig | None = Field(
        None, description="A judge's mark for one image."
    )
    unified_reward_think: UnifiedRewardThinkConfig | None = Field(
        None, description="Share of the comparisons in its group that an image wins."
    )
    edit_yes_no: EditYesNoConfig | None = Field(
        None, description="Whether an edit follows its instruction and keeps the rest."
    )
    complex_edit: ComplexEditConfig | None = Field(
        None, description="Complex-Edit: a judge's marks for an edited image."
    )
    scene_edit: SceneEditConfig | None = Field(
        None, description="Following and preserving of edits of scenes, without a judge."
    )
    mmmg: MmmgConfig | None = Field(
        None, description="MMMG: the knowledge that a judge sees, times readability."
    )
    scene_graph: SceneGraphConfig | None = Field(
        None, description="The same of scene graphs, without a judge."
    )
    custom: dict[RewardName, CustomRewardConfig] = Field(
        default={}, description="Rewards of your own, by names of yours."
    )
    min_valid_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.9, description="Share of a step's images that must have a score, else the run stops."
    )
    min_valid_in_group: Fraction = Field(
        0.5,
        description="Share of a group's images that must have a score, and never fewer than 2, "
        "else no image of the group has an advantage.",
    )
    deadline: PositiveFloat = operational(
        600.0, "Seconds a step waits for its scores before they count as missing."
    )
    replay: Annotated[int, Field(ge=0, le=1000)] = operational(
        1,
        "How often scores that are still missing at the deadline, and may be had later, are asked "
        "for again; each time a step waits for another deadline.",
    )

    @classmethod
    def built_in(cls) -> list[str]:
        """Names of all rewards but those of one's own, set or not."""
        return [name for name, info in cls.model_fields.items() if info.default is None]

    def sections(self) -> dict[str, RewardSection]:
        """Name and section of every reward that is set, in the order of the schema."""
        return {path.rpartition(".")[2]: one for path, one in self.by_path().items()}

    def by_path(self) -> dict[str, RewardSection]:
        """As `sections`, by the dotted key."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        own = {f"rewards.custom.{name}": one for name, one in self.custom.items()}
        return {
            f"rewards.{name}": one for name, one in values.items() if isinstance(one, RewardSection)
        } | own

    def path_of(self, name: str) -> str:
        """The dotted key of a reward that is set."""
        return next(path for path in self.by_path() if path.rpartition(".")[2] == name)

    def only(self, name: str) -> RewardsConfig:
        """This configuration with one reward of it."""
        own = {key: None for key, one in self if isinstance(one, RewardSection) and key != name}
        custom = {key: one for key, one in self.custom.items() if key == name}
        return self.model_copy(update={**own, "custom": custom})

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Key and problem of every field that does not fit the others."""
        for name in self.custom.keys() & type(self).model_fields.keys():
            yield (
                f"rewards.custom.{name}",
                f"there is a reward of that name already: rewards.{name}",
            )
        for path, section in self.by_path().items():
            for key, problem in section.conflicts():
                yield f"{path}.{key}", problem
