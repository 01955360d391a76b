"""What the files of a Janus model say, and what is said where they are not those of one."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from atelier.config.facts.janus import JanusFacts
from atelier.config.facts.read import known_facts, read_model_facts
from atelier.config.paths import repository_root
from atelier.config.plan import plan
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.config.theirs import JANUS_PAGE
from atelier.errors import ConfigError, PlanError
from atelier.policies.janus.tiny import build_tokenizer
from benchmarks.janus_shape import JANUS_SHAPES, build_janus

SHAPE = JANUS_SHAPES["small"]
# Module and shape of what a layer multiplies with.
PROJECTIONS = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), (SHAPE.width, SHAPE.width)),
    **dict.fromkeys(("gate_proj", "up_proj", "down_proj"), (SHAPE.width, SHAPE.feed_forward)),
}


@pytest.fixture(scope="module")
def parameters() -> dict[str, int]:
    """Of every part of the real class, by its name."""
    found: dict[str, int] = {}
    for name, value in build_janus(SHAPE, build_tokenizer()).state_dict().items():
        part = name.removeprefix("model.").partition(".")[0]
        found[part] = found.get(part, 0) + value.numel()
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model as transformers saves it: in one file, and in several with an index."""
    root = tmp_path_factory.mktemp("janus")
    model = build_janus(SHAPE, build_tokenizer())
    model.save_pretrained(root / "whole")
    model.save_pretrained(root / "parts", max_shard_size="1MB")
    return {"whole": root / "whole", "parts": root / "parts"}


@pytest.fixture
def model(written: dict[str, Path], tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(written["whole"], tmp_path / "model"))


def configured(*overrides: str) -> RunConfig:
    return resolve("janus-pro-1b/grpo", overrides, Path(os.devnull))


def facts_of(path: Path, *overrides: str) -> JanusFacts:
    facts = read_model_facts(configured(f"policy.path={path}", *overrides))
    assert isinstance(facts, JanusFacts)
    return facts


def refusal(*overrides: str) -> str:
    with pytest.raises(PlanError) as caught:
        plan(configured(*overrides))
    return str(caught.value)


@pytest.mark.parametrize("form", ["whole", "parts"])
def test_sizes_are_those_of_the_class(
    form: str, written: dict[str, Path], parameters: dict[str, int]
) -> None:
    facts = facts_of(written[form])
    vision = parameters["vision_model"] + parameters["aligner"]
    trained = sum(parameters.values()) - vision - parameters["vqmodel"]
    assert facts.parameters == trained
    assert facts.images.vision_parameters == vision
    assert facts.images.tokenizer_parameters == parameters["vqmodel"]
    assert facts.frozen_bytes == 4 * (vision + parameters["vqmodel"])
    assert (facts.width, facts.layers, facts.feed_forward) == (128, 2, 352)
    assert (facts.vocabulary, facts.codebook, facts.key_value_width) == (1024, 96, 128)
    assert (facts.images.tokens, facts.images.pixels, facts.images.channels) == (16, 32 * 32, 32)
    assert len(list(written["parts"].glob("*.safetensors"))) > 1


def test_the_text_head_is_trained_by_answers_alone(
    written: dict[str, Path], parameters: dict[str, int]
) -> None:
    draws, judges = (
        facts_of(written["whole"]),
        facts_of(written["whole"], "rollout.kind=introspect"),
    )
    config = configured()
    assert draws.trained(config) == draws.parameters - parameters["lm_head"]
    assert judges.trained(config) == judges.parameters == draws.parameters


def test_the_adapter_is_on_the_language_model_alone(written: dict[str, Path]) -> None:
    """The vision tower has projections of the same names."""
    facts = facts_of(written["whole"], "policy.trainable=lora", "policy.lora.rank=3")
    assert facts.adapter_parameters == 2 * 3 * sum(map(sum, PROJECTIONS.values()))
    assert not facts.unknown_targets
    one = facts_of(written["whole"], "policy.lora={rank: 3, target_modules: [self_attn.q_proj]}")
    assert one.adapter_parameters == 2 * 3 * sum(PROJECTIONS["q_proj"])


@pytest.mark.parametrize(
    "target", ["embed_tokens", "lm_head", "fc1", "input_layernorm", "attn.to_q"]
)
def test_targets_that_no_layer_of_the_language_model_has(
    target: str, written: dict[str, Path]
) -> None:
    said = refusal(
        f"policy.path={written['whole']}",
        "policy.trainable=lora",
        f"policy.lora.target_modules=[q_proj, {target}]",
    )
    assert f"policy.lora.target_modules: {target} names no linear layer of the language" in said


def test_files_that_are_not_whole(model: Path, written: dict[str, Path], tmp_path: Path) -> None:
    def said(path: Path) -> str:
        with pytest.raises(ConfigError) as caught:
            facts_of(path)
        return str(caught.value)

    parts = Path(shutil.copytree(written["parts"], tmp_path / "parts"))
    index = parts / "model.safetensors.index.json"
    places = json.loads(index.read_text())
    places["weight_map"]["nowhere"] = next(iter(places["weight_map"].values()))
    index.write_text(json.dumps(places))
    assert "index.json: weight_map: nowhere is in none of its files" in said(parts)
    index.write_text('{"weight_map": [1]}')
    assert "index.json: weight_map: expected the file of every tensor" in said(parts)
    index.write_text('{"weight_map": {"a": "away.safetensors"}}')
    assert "there is no file away.safetensors beside it" in said(parts)
    (model / "model.safetensors").write_bytes(
        b'\x22\0\0\0\0\0\0\0{"a": {"dtype": "F32", "shape": "b"}}'
    )
    assert "model.safetensors: not a safetensors file" in said(model)
    (model / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    assert "have no tensor model.vision_model.embeddings.position_embedding.weight" in said(model)
    (model / "model.safetensors").unlink()
    assert "neither model.safetensors nor model.safetensors.index.json" in said(model)


@pytest.mark.parametrize(
    ("section", "key", "value", "text"),
    [
        (
            "text_config",
            "hidden_size",
            64,
            "text_config.hidden_size is 64, and its tensors say 128",
        ),
        ("vision_config", "num_image_tokens", 9, "vision_config.num_image_tokens is 9"),
        ("vq_config", "num_embeddings", 7, "vq_config.num_embeddings is 7"),
        ("vision_config", None, [], "vision_config: expected a JSON object"),
        ("model_type", None, "llama", "config.json: model_type is llama, not janus"),
        ("model_type", None, "multi_modality", "is the original layout of Janus"),
    ],
)
def test_a_config_that_does_not_fit(
    section: str, key: str | None, value: object, text: str, model: Path
) -> None:
    file = model / "config.json"
    said = json.loads(file.read_text())
    if key is None:
        said[section] = value
    else:
        said[section][key] = value
    file.write_text(json.dumps(said))
    assert text in refusal(f"policy.path={model}")


def test_the_original_layout_is_led_to_how_it_becomes_a_file(model: Path) -> None:
    file = model / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_type": "multi_modality"}))
    said = refusal(f"policy.path={model}")
    assert f"a folder becomes such a file by the lines in {JANUS_PAGE}, Checkpoints" in said
    assert "## Checkpoints" in (repository_root() / JANUS_PAGE).read_text(encoding="utf-8")


def test_a_config_may_leave_out_what_is_usual(model: Path) -> None:
    file = model / "config.json"
    said = json.loads(file.read_text())
    del said["text_config"]["hidden_size"], said["vision_config"]
    file.write_text(json.dumps(said))
    assert facts_of(model).width == SHAPE.width


def test_the_family_has_to_be_the_models(model: Path) -> None:
    sd3 = resolve("tiny/flow-grpo-fast", [f"policy.path={model}"], Path(os.devnull))
    with pytest.raises(PlanError, match=r"is a Janus model; set policy\.family: janus"):
        plan(sd3)
    assert "is a diffusers pipeline; set policy.family: sd3" in refusal(
        "policy.path=assets/tiny-sd3"
    )
    (model / "config.json").unlink()
    assert "no config.json: not a model directory" in refusal(f"policy.path={model}")


def test_hub_ids_of_the_other_family() -> None:
    medium = "stabilityai/stable-diffusion-3.5-medium"
    with pytest.raises(ConfigError, match=r"is a diffusers pipeline; set policy\.family: sd3"):
        known_facts(configured(f"policy.path={medium}"))
    janus = ["policy.path=deepseek-community/Janus-Pro-1B"]
    sd3 = resolve("tiny/flow-grpo-fast", janus, Path(os.devnull))
    with pytest.raises(ConfigError, match=r"is a Janus model; set policy\.family: janus"):
        known_facts(sd3)


class TestWeightsOfAnotherFile:
    """policy.path names a .pth, and policy.layout what it is."""

    def test_the_layout_says_the_sizes(self, written: dict[str, Path], tmp_path: Path) -> None:
        torch.save({}, tmp_path / "tuned.pth")
        weights = f"policy.path={tmp_path / 'tuned.pth'}"
        facts = read_model_facts(configured(weights, f"policy.layout={written['whole']}"))
        assert facts == facts_of(written["whole"])
        made = plan(configured(weights, "policy.layout=deepseek-community/Janus-Pro-1B"))
        assert made.memory is not None
        assert not made.model_is_here

    def test_what_does_not_fit(self, written: dict[str, Path], tmp_path: Path) -> None:
        torch.save({}, tmp_path / "tuned.pth")
        weights, layout = f"policy.path={tmp_path / 'tuned.pth'}", written["whole"]
        away = refusal("policy.path=away.pth", f"policy.layout={layout}")
        assert "policy.path: there is no file away.pth" in away
        lacking = refusal(weights)
        assert "policy.layout: " in lacking
        assert "neither" not in lacking
        assert "policy.layout: no/such/place is neither a model directory nor a hub id" in refusal(
            weights, "policy.layout=no/such/place"
        )
        assert "policy.layout: is for a file of weights" in refusal(
            f"policy.path={layout}", f"policy.layout={layout}"
        )
        assert "policy.layout: deepseek-ai/Janus-Pro-7B: is in the original layout" in refusal(
            weights, "policy.layout=deepseek-ai/Janus-Pro-7B"
        )
        assert "is a directory, only a hub id has revisions" in refusal(
            weights, f"policy.layout={layout}", "policy.revision=main"
        )

    @pytest.mark.parametrize(
        ("share", "what"), [(0.0, "is empty"), (0.5, "is cut off"), (None, "is no file of torch")]
    )
    def test_a_file_without_weights(
        self, written: dict[str, Path], tmp_path: Path, share: float | None, what: str
    ) -> None:
        file = tmp_path / "tuned.pth"
        torch.save({"a": torch.zeros(99)}, file)
        whole = file.read_bytes()
        file.write_bytes(b"weights" if share is None else whole[: int(len(whole) * share)])
        said = refusal(f"policy.path={file}", f"policy.layout={written['whole']}")
        assert f"policy.path: {file} {what}" in said


@pytest.mark.parametrize(("rounds", "fits"), [(3, True), (4, False)])
def test_rounds_that_no_prompt_is_short_enough_for(model: Path, rounds: int, fits: bool) -> None:
    """Three images of 16 tokens and two answers of 10 are 68, a fourth makes it 94."""
    file = model / "config.json"
    said = json.loads(file.read_text())
    said["text_config"]["max_position_embeddings"] = 80
    file.write_text(json.dumps(said))
    tokens = facts_of(model).images.tokens
    assert tokens == 16
    settings = ["rollout.kind=introspect", "rollout.introspection.answer_tokens=10"]
    settings += [f"policy.path={model}", f"rollout.introspection.rounds={rounds}"]
    if fits:
        plan(configured(*settings))
    else:
        assert "rollout.introspection.rounds: 4 images and the answers between them are 94" in (
            refusal(*settings)
        )


def test_positions_that_are_no_number(model: Path) -> None:
    file = model / "config.json"
    said = json.loads(file.read_text())
    said["text_config"]["max_position_embeddings"] = "long"
    file.write_text(json.dumps(said))
    assert "text_config.max_position_embeddings is 'long'" in refusal(f"policy.path={model}")
