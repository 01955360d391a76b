"""Directories and checkpoints of DeepGen that can be opened, and what is said of others."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig as PeftLora
from peft import inject_adapter_in_model
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from atelier.config.facts.read import read_model_facts
from atelier.config.schema import RunConfig
from atelier.config.sections.policy import PolicyConfig
from atelier.config.sections.policy_parts import TextConfig
from atelier.errors import CheckpointError, ConfigError
from atelier.export.deepgen.base import BaseDeepGen
from atelier.export.deepgen.sft import write_sft
from atelier.policies.deepgen.encoding import Parts
from atelier.policies.deepgen.layout import write_model
from atelier.policies.deepgen.published import (
    merge_vlm,
    normalised,
    published_vlm_name,
    sort_weights,
)
from atelier.policies.deepgen.source import Checkpoint, open_source
from tests.support import random_deepgen

RANK, ALPHA = 3, 6.0


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_deepgen.save(tmp_path_factory.mktemp("deepgen") / "model")


def policy(path: Path, **settings) -> PolicyConfig:
    return PolicyConfig(family="deepgen", path=str(path), **settings)


def open_all(settings: PolicyConfig) -> None:
    source = open_source(settings)
    source.template()
    source.transformer("float32")
    source.bridge()
    source.vlm("float32")


def adapted(vlm: nn.Module, seed: int = 1) -> dict[str, Tensor]:
    """A LoRA of every linear layer and table, as the original code saves one, and its effect in
    place."""
    targets = [
        name for name, one in vlm.named_modules() if isinstance(one, nn.Linear | nn.Embedding)
    ]
    head = vlm.lm_head
    head.weight = nn.Parameter(head.weight.detach().clone())
    vlm.config.tie_word_embeddings = False
    torch.manual_seed(seed)
    inject_adapter_in_model(PeftLora(r=RANK, lora_alpha=ALPHA, target_modules=targets), vlm)
    found = {}
    for name, value in vlm.state_dict().items():
        if "lora_" in name:
            value.copy_(torch.randn(value.shape) * 0.2)
            found[f"lmm.{published_vlm_name(name)}"] = value.clone()
    return found


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PolicyConfig]:
    """A checkpoint of fine-tuning over a stock language model and an SD3.5 pipeline, and the
    directory that it is when it is converted by peft's own merge."""
    root = tmp_path_factory.mktemp("published")
    stock, tuned = random_deepgen.build(seed=1), random_deepgen.build(seed=2)
    write_model(stock, root / "pipeline")
    stock.vlm.save_pretrained(root / "vlm")
    stock.tokenizer.save_pretrained(root / "vlm")
    state = {f"transformer.{name}": one for name, one in tuned.transformer.state_dict().items()}
    state |= tuned.bridge.state_dict()
    state |= adapted(stock.vlm)
    torch.save({name: one.clone() for name, one in state.items()}, root / "sft.pth")
    from peft.tuners.tuners_utils import BaseTunerLayer

    for module in stock.vlm.modules():
        if isinstance(module, BaseTunerLayer):
            module.merge()
    merged = {
        name.replace(".base_layer", ""): one
        for name, one in stock.vlm.state_dict().items()
        if "lora_" not in name
    }
    torch.save(merged, root / "merged.pt")
    bases = {"vlm": str(root / "vlm"), "pipeline": str(root / "pipeline"), "adapter_alpha": ALPHA}
    return root, policy(root / "sft.pth", bases=bases, connector={"heads": 1})


# Names --------------------------------------------------------------------------------------------


def test_names_lose_what_wrappers_put_before_them() -> None:
    assert normalised("module.model.transformer.proj_out.bias") == "transformer.proj_out.bias"
    assert normalised("meta_queries") == "meta_queries"
    assert normalised("lmm.model.visual.blocks.0.attn.qkv.weight") == (
        "lmm.visual.blocks.0.attn.qkv.weight"
    )
    assert normalised("lmm.model.language_model.layers.3.mlp.up_proj.lora_A.default.weight") == (
        "lmm.model.layers.3.mlp.up_proj.lora_A.default.weight"
    )
    assert normalised("lmm.model.layers.3.x") == "lmm.model.layers.3.x"
    assert normalised("lmm.lm_head.weight") == "lmm.lm_head.weight"


def test_every_weight_has_a_place_or_is_told() -> None:
    one = torch.zeros(1)
    found = sort_weights(
        "file", {"module.transformer.a": one, "projector_2.bias": one, "vae.b": one}
    )
    assert list(found.transformer) == ["a"]
    assert list(found.bridge) == ["projector_2.bias"]
    assert found.aside == ("vae.b",)
    with pytest.raises(ConfigError, match="2 weights are of no part of a DeepGen model, such as x"):
        sort_weights("file", {"x": one, "y": one, "meta_queries": one})
    with pytest.raises(ConfigError, match=r"two weights for transformer\.a"):
        sort_weights("file", {"module.transformer.a": one, "transformer.a": one})


def test_names_of_the_language_model_go_both_ways(folder: Path) -> None:
    vlm = open_source(policy(folder)).vlm("float32")
    for name in vlm.state_dict():
        weights = {f"lmm.{published_vlm_name(name)}": torch.zeros(1)}
        assert list(sort_weights("file", weights).vlm) == [name]


# A directory --------------------------------------------------------------------------------------


def test_a_directory_gives_back_what_was_written(folder: Path) -> None:
    model, source = random_deepgen.build(), open_source(policy(folder))
    pairs = (
        (model.transformer, source.transformer("float32")),
        (model.vae, source.vae()),
        (model.vlm, source.vlm("float32")),
        (model.bridge, source.bridge()),
    )
    for mine, theirs in pairs:
        ours, read = mine.state_dict(), theirs.state_dict()
        assert ours.keys() == read.keys()
        assert all(torch.equal(ours[name], read[name]) for name in ours)
    assert source.template() == model.template
    assert json.loads((folder / "model_index.json").read_text())["_class_name"] == "DeepGenPipeline"


def change_heads(folder: Path) -> None:
    file = folder / "connector/config.json"
    said = json.loads(file.read_text())
    said["connector"]["num_attention_heads"] = 5
    file.write_text(json.dumps(said))


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    file = folder / "connector/model.safetensors"
    held = load_file(file)
    change(held)
    save_file(held, file)


def spoil(tensors: dict[str, Tensor]) -> None:
    tensors["projector_1.bias"][0] = torch.nan


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no language model": (lambda at: __import__("shutil").rmtree(at / "vlm"), "has no vlm/"),
    "heads": (change_heads, "5 attention heads do not divide 24"),
    "no heads": (lambda at: (at / "connector/config.json").write_text("{}"), "num_attention_heads"),
    "missing": (
        lambda at: rewrite(at, lambda held: held.pop("connector.layers.1.mlp.fc2.bias")),
        "1 of the model's weights are not there, such as connector.layers.1.mlp.fc2.bias",
    ),
    "too many": (
        lambda at: rewrite(at, lambda held: held.update(odd=torch.zeros(1))),
        "1 weights that the model's config knows nothing of, such as odd",
    ),
    "other shape": (
        lambda at: rewrite(at, lambda held: held.update({"projector_1.bias": torch.zeros(3)})),
        r"projector_1.bias has shape \[3\]",
    ),
    "no number": (lambda at: rewrite(at, spoil), "values that are no numbers"),
    "cut short": (
        lambda at: (at / "connector/model.safetensors").write_bytes(b"12345678"),
        "is no connector of a DeepGen model",
    ),
    "template": (lambda at: (at / "prompt_template.json").write_text("{}"), "GENERATION is a text"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_directory_is_told(tmp_path: Path, damage: str) -> None:
    change, message = DAMAGE[damage]
    change(random_deepgen.save(tmp_path / "model"))
    with pytest.raises(ConfigError, match=message):
        open_all(policy(tmp_path / "model"))


@pytest.mark.parametrize("is_checkpoint", [False, True])
def test_parts_of_different_models_are_told(published, tmp_path: Path, is_checkpoint: bool) -> None:
    """When they are loaded, and of a directory before that."""
    root, settings = published
    other = replace(random_deepgen.SIZES, layers=14)
    folder = random_deepgen.save(tmp_path / "model")
    random_deepgen.build(sizes=other).vlm.save_pretrained(folder / "vlm")
    if is_checkpoint:
        bases = settings.bases.model_copy(update={"vlm": str(folder / "vlm")})
        mixed = settings.model_copy(update={"bases": bases})
        state = torch.load(root / "sft.pth", weights_only=True)
        rest = {name: one for name, one in state.items() if not name.startswith("lmm.")}
        head = random_deepgen.build(sizes=other).vlm.lm_head.weight.detach()
        torch.save({**rest, "lmm.lm_head.weight": head}, tmp_path / "full.pth")
        mixed = mixed.model_copy(update={"path": str(tmp_path / "full.pth")})
    else:
        mixed = policy(folder)
    message = "hidden states have 64 values, and 3 layers of it is 96"
    with pytest.raises(ConfigError, match=message):
        Parts.of(open_source(mixed), mixed, torch.device("cpu"))
    if not is_checkpoint:
        with pytest.raises(ConfigError, match=message):
            read_model_facts(RunConfig(policy=mixed))


# A checkpoint -------------------------------------------------------------------------------------


def test_a_checkpoint_stands_over_its_bases(published) -> None:
    _, settings = published
    source, tuned = open_source(settings), random_deepgen.build(seed=2)
    assert isinstance(source, Checkpoint)
    transformer, bridge = source.transformer("float32"), source.bridge()
    for mine, theirs in ((tuned.transformer, transformer), (tuned.bridge, bridge)):
        read = theirs.state_dict()
        assert all(torch.equal(one, read[name]) for name, one in mine.state_dict().items())
    base = random_deepgen.build(seed=1)
    vae = source.vae().state_dict()
    assert all(torch.equal(one, vae[name]) for name, one in base.vae.state_dict().items())
    assert source.tokenizer()("a red")["input_ids"] == base.tokenizer("a red")["input_ids"]


def test_its_adapter_is_merged_as_peft_merges_it(published) -> None:
    """Linear layers, the tower, both tables: W + (alpha / r) B A, and its transpose for a table."""
    root, settings = published
    expected = torch.load(root / "merged.pt", weights_only=True)
    stock = random_deepgen.build(seed=1).vlm.state_dict()
    found = open_source(settings).vlm("float32").state_dict()
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], atol=1e-6, rtol=1e-6)
    moved = [name for name, value in found.items() if not torch.equal(value, stock[name])]
    assert {"lm_head.weight", "model.language_model.embed_tokens.weight"} <= set(moved)
    assert not torch.equal(
        found["lm_head.weight"], found["model.language_model.embed_tokens.weight"]
    )


def test_it_is_rounded_once_to_the_dtype_of_its_base(published, tmp_path: Path) -> None:
    """So that an export in that dtype is the same model, whatever it computes in."""
    _, settings = published
    vlm = random_deepgen.build(seed=1).vlm
    vlm.to(torch.bfloat16).save_pretrained(tmp_path / "vlm")
    bases = settings.bases.model_copy(update={"vlm": str(tmp_path / "vlm")})
    source = open_source(settings.model_copy(update={"bases": bases}))
    stored, exact = source.vlm(None), source.vlm("float32")
    assert (stored.dtype, exact.dtype) == (torch.bfloat16, torch.float32)
    held = stored.state_dict()
    assert all(torch.equal(one, held[name].float()) for name, one in exact.state_dict().items())
    before = vlm.lm_head.weight
    assert not torch.equal(held["lm_head.weight"], before), "the adapter is in it"


def test_an_export_knows_its_bases_by_their_files(published, tmp_path: Path) -> None:
    root, settings = published
    shutil.copytree(root / "vlm", tmp_path / "vlm")
    bases = settings.bases.model_copy(update={"vlm": str(tmp_path / "vlm")})
    config = RunConfig(policy=settings.model_copy(update={"bases": bases}))
    first = BaseDeepGen.of(config).weights_sha256()
    random_deepgen.build(seed=3).vlm.save_pretrained(tmp_path / "vlm")
    assert BaseDeepGen.of(config).weights_sha256() != first


def test_names_of_other_wrappers_load_the_same(published, tmp_path: Path) -> None:
    root, settings = published
    state = torch.load(root / "sft.pth", weights_only=True)
    renamed = {
        f"module.{name}".replace("lmm.model.", "lmm.model.language_model."): one
        for name, one in state.items()
    }
    torch.save({"state_dict": renamed}, tmp_path / "other.pth")
    other = settings.model_copy(update={"path": str(tmp_path / "other.pth")})
    ours, theirs = open_source(settings), open_source(other)
    assert all(
        torch.equal(one, theirs.vlm("float32").state_dict()[name])
        for name, one in ours.vlm("float32").state_dict().items()
    )


def test_a_checkpoint_without_the_adapter_is_refused_unless_one_lies_beneath(
    published, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What RL saves: the stock language model would be taken without a word."""
    root, settings = published
    state = torch.load(root / "sft.pth", weights_only=True)
    state["transformer.proj_out.bias"] += 1
    bare = {name: one for name, one in state.items() if not name.startswith("lmm.")}
    torch.save(bare, tmp_path / "rl.pth")
    rl = settings.model_copy(update={"path": str(tmp_path / "rl.pth")})
    with pytest.raises(ConfigError, match=r"policy\.bases\.sft: .* name the SFT checkpoint"):
        open_source(rl).vlm("float32")
    over = rl.bases.model_copy(update={"sft": str(root / "sft.pth")})
    with caplog.at_level(logging.INFO):
        source = open_source(rl.model_copy(update={"bases": over}))
        vlm = source.vlm("float32")
    adapted_by_sft = open_source(settings).vlm("float32").state_dict()
    assert all(torch.equal(one, adapted_by_sft[name]) for name, one in vlm.state_dict().items())
    theirs = random_deepgen.build(seed=2).transformer.proj_out.bias + 1
    assert torch.equal(source.transformer("float32").proj_out.bias, theirs)
    modules = sum("lora_" in name and ("_A" in name) for name in state)
    assert f"LoRA of {modules} modules merged" in caplog.text


@pytest.mark.parametrize("full_lies", ["above", "beneath"])
def test_an_adapter_is_not_merged_into_a_language_model_that_is_there_in_full(
    published, tmp_path: Path, full_lies: str
) -> None:
    """What `export sft` writes without --onto, beside the checkpoint that the run began with."""
    root, settings = published
    state = torch.load(root / "sft.pth", weights_only=True)
    full = {name: one for name, one in state.items() if not name.startswith("lmm.")}
    merged = torch.load(root / "merged.pt", weights_only=True)
    full |= {f"lmm.{published_vlm_name(name)}": one for name, one in merged.items()}
    torch.save(full, tmp_path / "full.pth")
    files = (str(tmp_path / "full.pth"), str(root / "sft.pth"))
    path, sft = files if full_lies == "above" else reversed(files)
    both = settings.model_copy(
        update={"path": path, "bases": settings.bases.model_copy(update={"sft": sft})}
    )
    whose = "policy.path" if full_lies == "above" else "policy.bases.sft"
    with pytest.raises(ConfigError, match=rf"^policy\.bases\.sft: {whose} holds \d+ modules"):
        open_source(both).vlm("float32")
    alone = open_source(settings.model_copy(update={"path": files[0]})).vlm("float32").state_dict()
    assert all(torch.equal(one, alone[name]) for name, one in merged.items())


BROKEN: dict[str, tuple[Callable[[dict[str, Tensor]], object], str]] = {
    "transformer incomplete": (
        lambda state: state.pop("transformer.proj_out.bias"),
        "transformer: 1 of the model's weights are not there, such as proj_out.bias",
    ),
    "transformer of another": (
        lambda state: state.update({"transformer.odd": torch.zeros(1)}),
        "knows nothing of, such as odd",
    ),
    "half an adapter": (
        lambda state: state.pop("lmm.lm_head.lora_B.default.weight"),
        "its LoRA of lm_head has no module or no other half",
    ),
    "an adapter of nothing": (
        lambda state: state.update(
            {f"lmm.odd.lora_{side}.default.weight": torch.zeros(2, 2) for side in "AB"}
        ),
        "its LoRA of odd has no module",
    ),
    "an adapter of other shape": (
        lambda state: state.update({"lmm.lm_head.lora_B.default.weight": torch.zeros(5, RANK)}),
        "its LoRA of lm_head makes",
    ),
    "whole numbers for the transformer": (
        lambda state: state.update({"transformer.proj_out.bias": torch.ones(16).to(torch.int8)}),
        "proj_out.bias is stored as int8",
    ),
    "whole numbers for the connector": (
        lambda state: state.update({"projector_1.bias": state["projector_1.bias"].to(torch.int8)}),
        "projector_1.bias is stored as int8",
    ),
    "whole numbers for the language model": (
        lambda state: state.update(
            {name: one.to(torch.int8) for name, one in state.items() if "lm_head.lora_A" in name}
        ),
        "lm_head.lora_A.default.weight is stored as int8",
    ),
    "an unknown part": (lambda state: state.update(odd=torch.zeros(1)), "of no part"),
    "a connector of none": (lambda state: state.pop("meta_queries"), "no connector"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_checkpoint_that_does_not_fit_is_told(published, tmp_path: Path, broken: str) -> None:
    change, message = BROKEN[broken]
    root, settings = published
    state = torch.load(root / "sft.pth", weights_only=True)
    change(state)
    torch.save(state, tmp_path / "broken.pth")
    with pytest.raises(ConfigError, match=message):
        open_all(settings.model_copy(update={"path": str(tmp_path / "broken.pth")}))


def test_weights_too_large_for_their_dtype_are_told(published, tmp_path: Path) -> None:
    """They are finite in the file, and infinite where they are held."""
    root, settings = published
    state = torch.load(root / "sft.pth", weights_only=True)
    state["transformer.proj_out.bias"][0] = state["projector_1.bias"][0] = 1e5
    state["lmm.lm_head.lora_B.default.weight"][0] = 1e6
    torch.save(state, tmp_path / "large.pth")
    half = settings.model_copy(
        update={"path": str(tmp_path / "large.pth"), "text": TextConfig(dtype="float16")}
    )
    source = open_source(half)
    with pytest.raises(ConfigError, match=r"proj_out\.bias has values .* infinite in float16"):
        source.transformer("float16")
    source.transformer("float32")
    with pytest.raises(ConfigError, match=r"lm_head\.weight has values .* infinite in float16"):
        source.vlm("float16")
    state["lmm.lm_head.lora_B.default.weight"][0] = 1
    torch.save(state, tmp_path / "large.pth")
    with pytest.raises(ConfigError, match=r"projector_1\.bias has values .* infinite in float16"):
        Parts.of(open_source(half), half, torch.device("cpu"))


def test_what_rl_saves_is_read(published, tmp_path: Path) -> None:
    """`checkpoint-N/model.safetensors`, without the language model, over the SFT checkpoint."""
    root, settings = published
    state = torch.load(root / "sft.pth", weights_only=True)
    own = {name: one for name, one in state.items() if not name.startswith("lmm.")}
    save_file({name: one.contiguous() for name, one in own.items()}, tmp_path / "model.safetensors")
    bases = settings.bases.model_copy(update={"sft": str(root / "sft.pth")})
    rl = settings.model_copy(update={"path": str(tmp_path / "model.safetensors"), "bases": bases})
    sft, read = (open_source(one).transformer("float32").state_dict() for one in (settings, rl))
    assert all(torch.equal(one, read[name]) for name, one in sft.items())


def in_two_files(folder: Path, state: dict[str, torch.Tensor]) -> Path:
    """As transformers saves what is large; the index that names both."""
    names, places = sorted(state), {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: state[name].contiguous() for name in part}, folder / file)
        places |= dict.fromkeys(part, file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return index


def test_what_rl_saves_in_several_files_is_read_whole(published, tmp_path: Path) -> None:
    root, settings = published
    state = torch.load(root / "sft.pth", weights_only=True)
    index = in_two_files(tmp_path, state)
    several = settings.model_copy(update={"path": str(index)})
    source, one = open_source(several), open_source(settings)
    for part in ("transformer", "vlm"):
        expected, read = (getattr(at, part)("float32").state_dict() for at in (one, source))
        assert all(torch.equal(value, read[name]) for name, value in expected.items())
    files = {file.name for file in source.text_files()}
    assert {f"model-{number:05d}-of-00002.safetensors" for number in (1, 2)} <= files
    where = tmp_path / "model-00002-of-00002.safetensors"
    save_file({"transformer.other": torch.zeros(1)}, where)
    with pytest.raises(ConfigError, match=r"weight_map: \S+ is in model-00002-of-00002\.safetens"):
        open_source(several).bridge()
    where.unlink()
    with pytest.raises(ConfigError, match=r"there is no file model-00002-of-00002\.safet"):
        open_source(several).bridge()


def test_several_files_that_rl_saved_become_one_to_fine_tune_from(
    published, tmp_path: Path
) -> None:
    root, _ = published
    state = torch.load(root / "sft.pth", weights_only=True)
    own = {name: value for name, value in state.items() if not name.startswith("lmm.")}
    moved = {name: value * 1.01 for name, value in own.items()}
    index = in_two_files(tmp_path, moved)
    for path, out in ((tmp_path, "of-folder.pth"), (index, "of-index.pth")):
        done = write_sft(path, tmp_path / out, root / "sft.pth")
        found = torch.load(tmp_path / out, weights_only=True)
        assert found.keys() == state.keys()
        assert all(torch.equal(found[name], moved.get(name, state[name])) for name in state)
        assert (done.replaced, done.kept) == (len(own), len(state) - len(own))
        assert "not painted with" in done.describe()
    with pytest.raises(ConfigError, match=r"has no language model; .* \(--onto\)"):
        write_sft(index, tmp_path / "no.pth")
    with pytest.raises(
        ConfigError, match=r"sft\.pth: holds \d+ weights of the language model, too"
    ):
        write_sft(root / "sft.pth", tmp_path / "no.pth", root / "sft.pth")
    one = tmp_path / "model-00001-of-00002.safetensors"
    with pytest.raises(CheckpointError, match="weights of transformer and connector differ"):
        write_sft(one, tmp_path / "no.pth", root / "sft.pth")
    assert not (tmp_path / "no.pth").exists()


def test_code_in_a_checkpoint_does_not_run(published, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    torch.save({"transformer.a": Trap()}, tmp_path / "trap.pth")
    _, settings = published
    source = open_source(settings.model_copy(update={"path": str(tmp_path / "trap.pth")}))
    with pytest.raises(ConfigError, match="is no file of weights"):
        source.bridge()
    assert not (tmp_path / "sprung").exists()


def test_weights_in_full_replace_those_of_the_base() -> None:
    vlm = random_deepgen.build().vlm
    name = "model.language_model.layers.0.self_attn.q_proj.base_layer.weight"
    shape = vlm.model.language_model.layers[0].self_attn.q_proj.weight.shape
    done = merge_vlm("file", vlm, {name: torch.full(shape, 2.0)}, ALPHA)
    assert (done.replaced, done.adapted) == (1, 0)
    assert bool((vlm.model.language_model.layers[0].self_attn.q_proj.weight == 2).all())


def test_a_checkpoint_needs_its_bases(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy\.bases\.vlm: .* holds weights alone"):
        open_source(policy(tmp_path / "x.pth"))
    with pytest.raises(ConfigError, match="neither a directory nor a model of the hub"):
        open_source(policy(tmp_path / "nothing"))
