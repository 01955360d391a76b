"""What the planner says of Qwen-Image, beside what the policy does: a small one of the real
classes."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from atelier.cli.application import application
from atelier.config.facts.qwen import QwenFacts
from atelier.config.facts.read import known_facts, read_model_facts
from atelier.config.memory.estimate import Memory, estimate
from atelier.config.memory.qwen import packed_completion_bytes
from atelier.config.memory_advice import GIBIBYTE, fitting
from atelier.config.placement import gpus_wanted
from atelier.config.plan import Plan, plan
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.config.space import run_bytes
from atelier.config.work import Work, work
from atelier.data.prompts import Prompt
from atelier.data.scenes import sample_scene, to_dict
from atelier.errors import ConfigError, PlanError
from atelier.policies.base import Sample
from atelier.policies.qwen.policy import QwenPolicy
from tests.support.random_qwen import SIDE, Kind, save_pipeline

ADAPTER = ("policy.trainable=lora", "policy.lora.rank=4")
QWEN = (
    "policy.family=qwen",
    "algorithm.kl=k3",
    "rollout.completion.max_tokens=10",
    "rollout.num_inference_steps=2",
    "export.weights=ema",
)
SMALL = (f"policy.resolution={SIDE}", "launch.device=cpu")
EDITS = (
    "rollout.kind=edit",
    "data.scene_task=edit",
    "data.scene_kind=shapes",
    "evaluation.suite=editing",
    "rewards={ocr: null, jpeg_compressibility: {weight: 1}}",
    "rollout.environment={condition_side: 64, reference_side: 64}",
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("qwen")
    kinds: tuple[Kind, ...] = ("text", "edit")
    return {kind: save_pipeline(root / kind, kind) for kind in kinds}


def configured(folder: Path | str, *overrides: str) -> RunConfig:
    settings = [f"policy.path={folder}", *QWEN, *overrides]
    return resolve("tiny/base", settings, Path(os.devnull))


def published(*overrides: str) -> RunConfig:
    large = ["policy.dtype=bfloat16", "policy.base_dtype=bfloat16", "policy.trainable=lora"]
    large += ["policy.lora={rank: 128, alpha: 256}", "rollout.environment.dtype=bfloat16"]
    large += ["rollout.completion.max_tokens=512", "policy.gradient_checkpointing=true"]
    return configured("Qwen/Qwen-Image", *large, *overrides)


def facts_of(config: RunConfig) -> QwenFacts:
    facts = read_model_facts(config)
    assert isinstance(facts, QwenFacts)
    return facts


def samples() -> list[Sample]:
    scene = to_dict(sample_scene(random.Random(0), "shapes"))
    prompts = [Prompt(index, 0, "a red circle", {"source_scene": scene}) for index in range(2)]
    return [Sample(index, index, prompt) for index, prompt in enumerate(prompts)]


@pytest.mark.parametrize("settings", [(), ADAPTER])
@pytest.mark.parametrize("kind", ["text", "edit"])
def test_a_policy_is_what_the_plan_says(
    kind: str, settings: tuple[str, ...], folders: dict[str, Path]
) -> None:
    of_kind = EDITS if kind == "edit" else ()
    config = configured(folders[kind], *SMALL, *of_kind, *settings)
    facts = facts_of(config)
    policy = QwenPolicy.load(config, "cpu")
    assert sum(one.numel() for one in policy.trainable().values()) == facts.trained(config)
    assert (facts.kind == "edit") == (kind == "edit")
    policy.begin_step(1)
    rollout = policy.rollout(policy.module, samples())
    each = work(config, facts)
    assert rollout.longest == (each.actions,)
    assert len(list(policy.parts(rollout))) == each.replay
    packed = sum(one.numel() * one.element_size() for one in policy.pack(rollout).values())
    assert packed == 2 * packed_completion_bytes(rollout.actions)


def test_a_completion_is_drawn_token_by_token_and_painted_step_by_step() -> None:
    guided = work(published("rollout.guidance_scale=4", "evaluation.num_inference_steps=50"), None)
    assert guided == Work(
        actions=512,
        images=1,
        rollout=512,
        replay=1,
        evaluation=512,
        painting=2 * 2,
        evaluation_painting=50,
    )
    assert work(published("evaluation.completions=none"), None).evaluation == 0


def planned(*overrides: str) -> Plan:
    return plan(published(*overrides))


def test_a_plan_counts_what_is_painted() -> None:
    """60 steps of 12 prompts with 16 images each; 256 prompts before and after, 64 three times."""
    made = planned("evaluation.num_inference_steps=5")
    assert made.acts_by_tokens
    assert made.rollout_passes == 60 * 192 * 512
    assert made.painting_passes == 60 * 192 * 2 + (2 * 256 + 3 * 64) * 5
    said = CliRunner().invoke(
        application, ["plan", "--recipe", "tiny/base", "--params", os.devnull]
    )
    assert "painting" not in said.output


def test_the_memory_of_a_published_pipeline_is_mostly_what_is_frozen() -> None:
    """41 GB of the transformer and 15 GB of the language model."""
    held = _memory(published()).held
    assert held["frozen transformer"] / 1e9 == pytest.approx(40.9, abs=0.1)
    assert held["base"] / 1e9 == pytest.approx(15.2, abs=0.1)
    assert held["negative prompt"] == 0
    assert _memory(published("rollout.environment.dtype=float32")).held["frozen transformer"] == (
        2 * held["frozen transformer"]
    )


def _memory(config: RunConfig) -> Memory:
    facts = known_facts(config)
    assert facts is not None
    return estimate(config, facts, config.rollout.micro_batch_size, 512, ranks=1)


HELD_OUT = ("evaluation.micro_batch_size=32", "evaluation.periodic_prompts=32")


@pytest.mark.parametrize(
    ("more", "phase"),
    [
        ("rollout.completion.max_tokens=900", "replay"),
        ("rollout.micro_batch_size=24", "replay"),
        ("policy.gradient_checkpointing=false", "replay"),
        ("rollout.micro_batch_size=24", "rollout"),
        ("rollout.environment.micro_batch_size=32", "evaluation"),
    ],
)
def test_what_takes_more_memory(more: str, phase: str) -> None:
    found, usual = (
        sum(_memory(published(*one, *HELD_OUT)).phases[phase].values()) for one in ([more], [])
    )
    assert found > 1.2 * usual


def test_held_out_images_may_be_made_of_prompts_alone() -> None:
    """On a GPU that does not paint, reading them is all."""
    apart = (*FOUR, "rollout.environment.gpus=4", "train.evaluate_every=1")
    own, none = (
        plan(published(*apart, f"evaluation.completions={one}")).memory for one in ("own", "none")
    )
    assert own is not None
    assert none is not None
    assert own.phases["evaluation"].keys() == {"16-bit copies", "reading completions"}
    assert none.phases["evaluation"].keys() == {"16-bit copies", "reading prompts"}
    assert "evaluation" not in plan(published(*FOUR, "train.evaluate_every=0")).memory.phases


def test_an_export_takes_what_is_trained_or_all_of_the_pipeline() -> None:
    """Of the published one 41 GB that nobody trained."""
    alone, whole = (published(f"export.whole_pipeline={one}") for one in ("false", "true"))
    facts = known_facts(alone)
    assert facts is not None
    more = run_bytes(whole, facts) - run_bytes(alone, facts)
    assert more / 1e9 == pytest.approx(41, abs=1)


def test_guided_edits_keep_a_copy_of_the_encoder_where_all_of_it_is_trained() -> None:
    edits = ("policy.path=Qwen/Qwen-Image-Edit-2509", *EDITS, "policy.vae.dtype=bfloat16")
    edits += ("rollout.environment.dtype=bfloat16",)
    full = ("policy.trainable=full", "policy.base_dtype=float32")
    copied = _memory(published(*edits, *full, "rollout.guidance_scale=4"))
    assert copied.held["negative prompt"] == 2 * (copied.held["base"] // 4 - 152_064 * 3584)
    assert _memory(published(*edits, *full)).held["negative prompt"] == 0
    assert _memory(published(*edits, "rollout.guidance_scale=4")).held["negative prompt"] == 0


FOUR = (
    *("launch.processes=4", "launch.device=cuda", "train.prompts_per_step=8"),
    "policy.vae.slicing=true",
)


@pytest.mark.parametrize(("gpus", "copies"), [(4, 1), (2, 2), (1, 4)])
def test_gpus_that_paint_have_a_copy_for_each_of_their_ranks(gpus: int, copies: int) -> None:
    together = plan(published(*FOUR)).memory
    made = plan(published(*FOUR, f"rollout.environment.gpus={gpus}"))
    assert together is not None
    assert made.memory is not None
    for part in ("frozen transformer", "autoencoder"):
        assert part not in made.memory.held
        assert made.memory.painter[part] == copies * together.held[part]
    painting = made.memory.painter_peak - sum(
        made.memory.painter[part] for part in ("frozen transformer", "autoencoder")
    )
    assert painting == copies * sum(together.phases["rollout"].values())
    assert made.memory.peak < together.peak - 40e9
    assert together.painter == {}
    assert [who for who, _, _ in made.placement] == ["trainer", "painting"]


def test_the_memory_of_a_gpu_that_paints_has_to_fit_too() -> None:
    assert fitting(published(*FOUR, "rollout.environment.gpus=4"), 60)[0].startswith("fits 60 GiB")
    lines = fitting(published(*FOUR, "rollout.environment.gpus=1"), 60)
    assert lines[0].startswith("does not fit 60 GiB")
    assert "; of a GPU that paints " in lines[0]
    assert any("fits with   --set rollout.environment.gpus=4" in line for line in lines[1:])
    alone = fitting(published(*FOUR), 60)
    (line,) = [line for line in alone if "rollout.environment.gpus=4" in line]
    assert line.endswith("GiB each)")
    assert "(4 GPUs more, " in line


def test_advice_says_what_a_gpu_that_paints_needs() -> None:
    """Where it is the one without room, and where both have none."""
    apart = published(*FOUR, "rollout.environment.gpus=4", "rollout.micro_batch_size=8")
    fewer = plan(_with(apart, "rollout.environment.micro_batch_size", 4)).memory
    assert fewer is not None
    painter = f"of a GPU that paints {fewer.painter_peak / GIBIBYTE:.1f} GiB"
    now = plan(apart).memory
    assert now is not None
    room = (fewer.painter_peak + now.painter_peak) / 2 * 1.1 / GIBIBYTE
    (line,) = [one for one in fitting(apart, room)[1:] if "environment.micro_batch_size" in one]
    assert line.startswith("  fits with")
    assert line.endswith(f": {fewer.peak / GIBIBYTE:.1f} GiB, {painter}")
    lower = fitting(apart, 5)
    assert any("lower with  --set rollout.environment.micro_batch_size=1:" in one for one in lower)


def _with(config: RunConfig, key: str, value: int) -> RunConfig:
    *path, name = key.split(".")
    values = config.model_dump(mode="json")
    section = values
    for part in path:
        section = section[part]
    section[name] = value
    return RunConfig.model_validate_json(json.dumps(values))


def test_what_makes_it_fit() -> None:
    config = published("rollout.environment.dtype=float32", "policy.vae.slicing=true")
    lines = fitting(config, 100)
    assert lines[0].startswith("does not fit 100 GiB")
    assert any("rollout.environment.dtype=bfloat16" in line for line in lines[1:])
    assert _memory(published("policy.vae.slicing=true")).peak < 100 * GIBIBYTE


def test_painting_fewer_together_may_make_it_fit() -> None:
    heldout = ("evaluation.micro_batch_size=64", "evaluation.periodic_prompts=64")
    painted = "rollout.environment.micro_batch_size=64"
    many = published(*heldout, painted, "train.evaluate_every=1", "policy.vae.slicing=true")
    lines = fitting(many, 80)
    assert lines[0].startswith("does not fit 80 GiB")
    assert any("--set rollout.environment.micro_batch_size=32" in line for line in lines[1:])


def test_a_distilled_schedule_wants_its_adapter(tmp_path: Path) -> None:
    preset = "rollout.environment.preset=lightning"
    told = [one for one in planned(preset).warnings if "environment.adapter" in one]
    assert len(told) == 1
    assert "its distilled LoRA" in told[0]
    file = tmp_path / "lightning.safetensors"
    with pytest.raises(PlanError, match=r"environment\.adapter: there is no file .*lightning\.saf"):
        planned(preset, f"rollout.environment.adapter={file}")
    file.write_bytes(b"")
    made = planned(preset, f"rollout.environment.adapter={file}")
    assert not [one for one in made.warnings if "environment.adapter" in one]


REFUSED = [
    (("rollout.kind=introspect",), "rollout.kind: introspect is for policy.family janus"),
    (("algorithm.name=nft",), "algorithm.name: nft is for policy.family sd3"),
    (("algorithm.beta=0.1", "algorithm.kl=velocity"), "algorithm.kl: velocity is for"),
    (("algorithm.kl_placement=reward",), "algorithm.kl_placement: the KL of tokens"),
    (("algorithm.ground_truth.enabled=true", "data.scene_pairs=0.5"), "ground_truth.enabled: is"),
    (("policy.layout=x/y",), "policy.layout: is for policy.family janus"),
    (("launch.engine=deepspeed", "launch.zero_stage=3"), "launch.zero_stage: 3 would gather"),
    (("rollout.conditioning.window=2000",), "rollout.conditioning.window: 2000: the pipeline of"),
    (("rollout.completion.max_tokens=1020",), "rollout.completion.max_tokens: 1020 tokens and"),
    (
        ("rollout.conditioning.window=1",),
        "rollout.conditioning.window: 1 tokens hold no completion: a prompt and its marks take 7",
    ),
    (
        (*EDITS, "rollout.environment.condition_side=512", "rollout.conditioning.window=340"),
        "rollout.completion.max_tokens: 10 tokens and a prompt with its source image (324 tokens)",
    ),
    (
        (*EDITS, "rollout.conditioning.window=11"),
        "window: 11 tokens hold no completion: a prompt with its source image (4 tokens)",
    ),
    (
        ("evaluation.completions=shuffled", "data.heldout_prompts=33"),
        "of 33 prompts with 1 image(s) each",
    ),
    (("rollout.kind=edit",), "rollout.kind: edit needs training prompts that are edits"),
    (
        (*EDITS, "rollout.conditioning.template=planning"),
        "rollout.conditioning.template: planning asks for an image from words",
    ),
    ((*EDITS, "policy.vae.dtype=float16"), "policy.vae.dtype: float16, and rollout.environment"),
    (
        ("evaluation.completions=shuffled", "evaluation.micro_batch_size=1"),
        "evaluation.micro_batch_size: 1: completions are shuffled",
    ),
    (
        ("evaluation.completions=shuffled", "evaluation.prompts=33"),
        "of 33 prompts with 1 image(s) each",
    ),
    (
        ("evaluation.completions=shuffled", "evaluation.images_per_prompt=16"),
        "evaluation.micro_batch_size: 16: completions are shuffled",
    ),
]


@pytest.mark.parametrize(("overrides", "reason"), REFUSED)
def test_what_cannot_work_is_refused(
    overrides: tuple[str, ...], reason: str, folders: dict[str, Path]
) -> None:
    with pytest.raises(PlanError) as caught:
        plan(configured(folders["text"], *SMALL, *overrides))
    assert reason in str(caught.value)


def test_a_pipeline_is_told_what_it_is(folders: dict[str, Path]) -> None:
    with pytest.raises(PlanError, match=r"rollout\.kind: draw, and .* use edit"):
        plan(configured(folders["edit"], *SMALL))
    with pytest.raises(PlanError, match=r"is a Qwen-Image pipeline; set policy\.family: qwen"):
        plan(configured(folders["text"], *SMALL, "policy.family=sd3", "algorithm.kl=velocity"))
    with pytest.raises(PlanError, match=r"is a Qwen-Image pipeline; set policy\.family: qwen"):
        plan(configured("Qwen/Qwen-Image", "policy.family=janus"))
    with pytest.raises(PlanError, match="_class_name is StableDiffusion3Pipeline"):
        plan(configured("assets/tiny-sd3", *SMALL))
    with pytest.raises(PlanError, match="fc9 names no linear layer of the text encoder's"):
        plan(configured(folders["text"], *SMALL, *ADAPTER, "policy.lora.target_modules=[fc9]"))


def test_a_completion_has_room_for_more_than_its_end() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.completion\.max_tokens: 1 must be greater"):
        published("rollout.completion.max_tokens=1")


@pytest.mark.parametrize("key", ["condition_side", "reference_side"])
@pytest.mark.parametrize("side", [0, 16, 48, 100, 4128])
def test_sizes_that_are_seen_are_those_that_there_are(key: str, side: int) -> None:
    """diffusers rounds to multiples of 32, of the least to 0."""
    with pytest.raises(ConfigError, match=rf"rollout\.environment\.{key}: {side} "):
        published(f"rollout.environment.{key}={side}")


def test_an_adapter_is_on_the_attention_where_nothing_else_is_said() -> None:
    assert published().policy.lora.target_modules == ["q_proj", "k_proj", "v_proj", "o_proj"]


@pytest.mark.parametrize(
    ("override", "does_nothing"),
    [
        ("rollout.noise_level=0.3", True),
        ("rollout.tokens.top_k=5", True),
        ("policy.text.dtype=bfloat16", True),
        ("rollout.environment.condition_side=512", True),
        ("rollout.editing.wish=Go.", True),
        ("rollout.shared_start=true", False),
        ("policy.vae.slicing=true", False),
        ("rollout.completion.top_k=5", False),
        ("export.whole_pipeline=true", False),
        ("algorithm.mask_truncated=true", False),
        ("rollout.sampler.replicas=1", False),
        ("rollout.sampler.vllm.tensor_parallel=2", True),
    ],
)
def test_what_does_nothing_is_said(override: str, does_nothing: bool) -> None:
    warnings = [one for one in planned(override).warnings if "does nothing here" in one]
    section = ".".join(override.partition("=")[0].split(".")[:2])
    assert any(one.startswith(section) for one in warnings) == does_nothing, warnings


def test_settings_of_writing_do_nothing_for_other_policies() -> None:
    overrides = ["rollout.completion.top_k=5", "evaluation.completions=none"]
    overrides += ["export.whole_pipeline=true"]
    warnings = plan(resolve("tiny/base", overrides, Path(os.devnull))).warnings
    for key in ("rollout.completion", "evaluation.completions", "export.whole_pipeline"):
        assert any(one.startswith(f"{key}: does nothing here") for one in warnings), warnings


# Completions that servers draw --------------------------------------------------------------------

SERVED = ("rollout.completion.backend=vllm", "rollout.old_log_prob=recompute")
SHARDED = ("launch.engine=deepspeed", "launch.zero_stage=3")


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("rollout.old_log_prob=rollout",), "rollout.old_log_prob: rollout: with rollout.comp"),
        (("rollout.completion.temperature=0.7",), "rollout.completion.log_prob: full: at temper"),
        ((*ADAPTER, "policy.lora.rank=600"), "policy.lora.rank: 600: vllm takes 512 at most"),
        (("rollout.sampler.replicas=2",), "rollout.sampler.replicas: 2 servers for 1 ranks"),
        (
            (
                "rollout.sampler.placement=remote",
                "rollout.sampler.urls=[http://a:1, http://b:1]",
            ),
            "rollout.sampler.urls: 2 servers for 1 ranks",
        ),
        ((*SHARDED, "train.evaluate_every=1"), "or no periodic evaluation (train.evaluate_every"),
    ],
)
def test_what_servers_cannot_draw_is_refused(
    overrides: tuple[str, ...], reason: str, folders: dict[str, Path]
) -> None:
    with pytest.raises(PlanError) as caught:
        plan(configured(folders["text"], *SMALL, *SERVED, *overrides))
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ("rollout.completion.temperature=0.7", "rollout.completion.log_prob=sampler"),
        (*SHARDED, "train.evaluate_every=0"),
        (*SHARDED, "evaluation.completions=none"),
        ("launch.processes=2", "rollout.sampler.replicas=2"),
    ],
)
def test_what_servers_can_draw_is_planned(
    overrides: tuple[str, ...], folders: dict[str, Path]
) -> None:
    found = plan(configured(folders["text"], *SMALL, *SERVED, *overrides))
    assert found.placement[1][0] == "rollout.sampler-0"
    assert [one for one in found.warnings if "writes other completions" in one]


def test_the_gpus_of_a_server_are_claimed_and_a_large_encoder_on_the_cpu_is_warned_of() -> None:
    def warned(*overrides: str) -> bool:
        config = published(*SERVED, *overrides)
        return any(
            one.startswith("rollout.sampler.server.gpus: 0") for one in plan(config).warnings
        )

    assert warned()
    for where in ("server.gpus=1", "server.share_gpus=true"):
        assert not warned(f"rollout.sampler.{where}")
    assert gpus_wanted(published(*SERVED, "rollout.sampler.server.gpus=1")) == 2
