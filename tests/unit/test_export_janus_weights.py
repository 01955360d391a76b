"""What an exported Janus directory holds: names, values, shards, and the files beside them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from atelier.config.schema import RunConfig
from atelier.config.sections.policy import LoraConfig
from atelier.errors import CheckpointError, ConfigError
from atelier.export.adapter import export_adapter
from atelier.export.families import family_of
from atelier.export.janus.base import BaseJanus
from atelier.export.language.adapter import check_adapter
from atelier.export.language.base import EMBEDDING, HEAD
from atelier.export.merged import export_merged
from atelier.export.record import ExportRecord, WrittenWeights
from atelier.export.reference import Difference, Differences
from atelier.policies.janus.original_layout import to_original
from tests.support.exports import (
    ALPHA,
    RANK,
    renamed,
    stored,
    trained,
    truncated,
    without_file,
    without_tensor,
)
from tests.support.janus_exports import (
    ADAPTER,
    WEIGHTS,
    change,
    facts,
    other_alpha,
    run_config,
    save_base,
)
from tests.support.random_janus import Sizes, build_model

CODEBOOK = "model.vqmodel.quantize.embedding.weight"
QUERY = "model.language_model.layers.0.self_attn.q_proj"
VISION_QUERY = "model.vision_model.encoder.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("janus") / "base")


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("janus") / "tied", Sizes(tied=True))


def merge(
    config: RunConfig, tensors: dict[str, Tensor], output: Path, dtype: torch.dtype = torch.float32
) -> WrittenWeights:
    output.mkdir()
    named = family_of("janus").base_names(tensors)
    lora = config.policy.lora if config.policy.trainable == "lora" else None
    return export_merged(BaseJanus.of(config), named, lora, dtype, output)


# Merged -----------------------------------------------------------------------------------------


def test_trained_in_full_every_tensor_is_replaced_by_name_and_the_rest_stays(
    saved: Path, tmp_path: Path
) -> None:
    config = run_config(saved, "full")
    tensors = trained(config)
    written = merge(config, tensors, tmp_path / "out")
    before, after = stored(saved), stored(tmp_path / "out")
    named = {name.removeprefix("janus."): value for name, value in tensors.items()}
    assert before.keys() == after.keys()
    for name in before:
        assert torch.equal(after[name], named.get(name, before[name])), name
    assert QUERY + ".weight" in named
    assert {VISION_QUERY, CODEBOOK, HEAD}.isdisjoint(named), "frozen; the head without text"
    assert written.tensors == len(before)
    assert written.update_survival == pytest.approx(1, abs=1e-5)


def test_the_codebook_stays_as_it_is_stored(saved: Path, tmp_path: Path) -> None:
    """The trainer scales its rows; the export does not."""
    config = run_config(saved, "full")
    merge(config, trained(config), tmp_path / "out")
    rows = stored(tmp_path / "out")[CODEBOOK]
    assert torch.equal(rows, build_model().state_dict()[CODEBOOK])
    assert float((rows.norm(dim=1) - 1).abs().max()) > 0.1


def test_a_lora_is_added_to_the_language_model_alone(saved: Path, tmp_path: Path) -> None:
    """At alpha / rank; the vision tower has layers of the same names."""
    config = run_config(saved, "lora")
    tensors = trained(config)
    merge(config, tensors, tmp_path / "out")
    before, after = stored(saved), stored(tmp_path / "out")
    pair = [tensors[f"janus.{QUERY}.lora_{side}.default.weight"] for side in "BA"]
    expected = before[f"{QUERY}.weight"] + ALPHA / RANK * pair[0] @ pair[1]
    torch.testing.assert_close(after[f"{QUERY}.weight"], expected, atol=1e-6, rtol=0)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert len(changed) == 2 * 7, "two layers of seven"
    assert all(name.startswith("model.language_model.layers.") for name in changed)


def test_shards_stay_and_their_index_is_true(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", shard="200KB")
    config = run_config(base, "full")
    merge(config, trained(config), tmp_path / "out")
    names = [sorted(one.name for one in f.glob("*.safetensors")) for f in (base, tmp_path / "out")]
    assert names[0] == names[1]
    assert len(names[0]) > 3
    index, was = (facts(one, f"{WEIGHTS}.index.json") for one in (tmp_path / "out", base))
    assert index["weight_map"] == was["weight_map"]
    held = stored(tmp_path / "out").values()
    assert index["metadata"]["total_size"] == sum(one.nbytes for one in held)


def test_a_shared_head_is_stored_once(tied: Path, tmp_path: Path) -> None:
    config = run_config(tied, "full")
    tensors = trained(config)
    written = merge(config, tensors, tmp_path / "out")
    after = stored(tmp_path / "out")
    assert HEAD not in after
    assert torch.equal(after[EMBEDDING], tensors[f"janus.{EMBEDDING}"])
    assert written.tensors == len(after)


def test_a_shared_head_that_is_stored_twice_stays_shared(tied: Path, tmp_path: Path) -> None:
    """As conversions of pickles leave it: a head that stayed behind would not be tied any more."""
    base = save_base(tmp_path / "base", Sizes(tied=True))
    weights = load_file(base / WEIGHTS)
    save_file({**weights, HEAD: weights[EMBEDDING].clone()}, base / WEIGHTS, {"format": "pt"})
    config = run_config(base, "full")
    written = merge(config, trained(config), tmp_path / "out")
    after = stored(tmp_path / "out")
    assert torch.equal(after[HEAD], after[EMBEDDING])
    assert not torch.equal(after[HEAD], weights[EMBEDDING])
    assert written.tensors == len(after) - 1, "one tensor of two names"


def test_two_tensors_that_a_configuration_ties_are_two(saved: Path, tmp_path: Path) -> None:
    base = save_base(tmp_path / "base")
    change(base, tie_word_embeddings=True)
    config = run_config(base, "full")
    merge(config, trained(config), tmp_path / "out")
    assert torch.equal(stored(tmp_path / "out")[HEAD], stored(saved)[HEAD])
    assert facts(tmp_path / "out")["tie_word_embeddings"] is False


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_is_rounded_once_and_the_configuration_says_so(
    saved: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    config = run_config(saved, "full")
    tensors = trained(config)
    written = merge(config, tensors, tmp_path / "out", dtype)
    after = stored(tmp_path / "out")
    assert {one.dtype for one in after.values()} == {dtype}
    assert torch.equal(after[f"{QUERY}.weight"], tensors[f"janus.{QUERY}.weight"].to(dtype))
    name = str(dtype).removeprefix("torch.")
    held = facts(tmp_path / "out")
    assert (held["dtype"], held["vision_config"].get("dtype", name)) == (name, name)
    assert written.update_survival is not None
    assert 0.9 < written.update_survival < 1


def test_a_sixteen_bit_base_is_exported_in_float32_that_loads_as_such(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", dtype=torch.bfloat16)
    assert facts(base)["dtype"] == "bfloat16"
    config = run_config(base, "full")
    merge(config, trained(config), tmp_path / "out")
    assert {one.dtype for one in stored(tmp_path / "out").values()} == {torch.float32}
    assert facts(tmp_path / "out")["dtype"] == "float32"


def test_other_files_are_copied_byte_for_byte(saved: Path, tmp_path: Path) -> None:
    config, out = run_config(saved, "full"), tmp_path / "out"
    merge(config, trained(config), out)
    copied = {path.name for path in out.iterdir()} - {WEIGHTS}
    beside = {path.name for path in saved.iterdir() if path.name[0] != "."}
    assert copied == beside - {WEIGHTS, "pytorch_model.bin", "README.md"} | {"BASE_README.md"}
    assert len(copied) > 5
    for name in copied - {"BASE_README.md"}:
        assert (out / name).read_bytes() == (saved / name).read_bytes(), name
    assert (out / "BASE_README.md").read_bytes() == (saved / "README.md").read_bytes()


def test_what_is_told_of_the_base_alone_is_not_told_of_the_trained_model(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base")
    for name in ("samples.png", "pretraining.json"):
        (base / name).write_bytes(b"of the base")
    config, out = run_config(base, "full"), tmp_path / "out"
    merge(config, trained(config), out)
    assert not {"samples.png", "pretraining.json"} & {path.name for path in out.iterdir()}


def test_marks_that_drawing_needs_are_named_where_they_are_not(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base")
    (base / "generation_config.json").unlink()
    config = run_config(base, "full")
    merge(config, trained(config), tmp_path / "out")
    held = facts(tmp_path / "out", "generation_config.json")
    assert held["generation_kwargs"] == {"boi_token_id": 3}
    assert (held["bos_token_id"], held["pad_token_id"]) == (1, 0)


# From a file of weights -------------------------------------------------------------------------


@pytest.mark.parametrize("shard", ["1GB", "200KB"])
@pytest.mark.parametrize("head", ["own", "shared"])
def test_a_run_that_began_with_a_file_of_weights_is_exported_whole(
    tmp_path: Path, shard: str, head: str
) -> None:
    """Its layout's configuration and tokenizer with the file's weights, trained."""
    layout = save_base(tmp_path / "layout", Sizes(tied=True), shard=shard)
    start = build_model(Sizes(tied=head == "shared"), seed=9).state_dict()
    torch.save(to_original(start), tmp_path / "start.pth")
    config = run_config(
        tmp_path / "start.pth",
        "lora",
        policy={"layout": str(layout)},
        export={"formats": ["merged"]},
    )
    merge(config, trained(config), tmp_path / "out")
    after = stored(tmp_path / "out")
    for name, value in start.items():
        if ".layers." not in name or "vision" in name:
            assert torch.equal(after[name], value), name
    assert not torch.equal(after[f"{QUERY}.weight"], start[f"{QUERY}.weight"])
    assert HEAD in after, "the file has it"
    assert facts(tmp_path / "out")["tie_word_embeddings"] is (head == "shared")
    index = tmp_path / "out" / f"{WEIGHTS}.index.json"
    assert index.exists() == (shard == "200KB")
    if index.exists():
        assert facts(tmp_path / "out", index.name)["weight_map"].keys() == after.keys()
    assert (tmp_path / "out" / "tokenizer.json").exists()


def test_an_adapter_of_a_file_of_weights_is_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"export\.formats.*holds weights alone; use merged"):
        reject(
            run_config(
                saved / "x.pth",
                "lora",
                policy={"layout": str(saved)},
                export={"formats": ["adapter"]},
            )
        )
    torch.save(to_original(build_model().state_dict()), tmp_path / "start.pth")
    base = BaseJanus(str(tmp_path / "start.pth"), saved, True, tmp_path / "start.pth")
    tensors = trained(run_config(saved, "lora"))
    lora = LoraConfig(rank=RANK, alpha=ALPHA, target_modules=["q_proj"])
    only = {name[6:]: value for name, value in tensors.items() if "q_proj" in name}
    with pytest.raises(ConfigError, match="is a file of weights; use merged"):
        export_adapter(base, only, lora, tmp_path)


def reject(config: RunConfig) -> None:
    from atelier.config.token_rules import token_rejections

    found = [f"{key}: {reason}" for key, reason in token_rejections(config)]
    raise ValueError("; ".join(found))


# Adapter ----------------------------------------------------------------------------------------


def adapter_record(written: WrittenWeights, base: BaseJanus) -> ExportRecord:
    nothing = Difference(0, 0)
    return ExportRecord.new("adapter", "float32", base, written, Differences(nothing, nothing))


@pytest.fixture(scope="module")
def adapter(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExportRecord]:
    config = run_config(saved, "lora")
    output, base = tmp_path_factory.mktemp("adapter"), BaseJanus.open(str(saved))
    tensors = family_of("janus").base_names(trained(config))
    written = export_adapter(base, tensors, config.policy.lora, output)
    check_adapter(output, adapter_record(written, base))
    return output, adapter_record(written, base)


def test_an_adapter_is_what_peft_reads(adapter: tuple[Path, ExportRecord], saved: Path) -> None:
    folder, record = adapter
    held = facts(folder, "adapter_config.json")
    assert (held["peft_type"], held["r"], held["lora_alpha"]) == ("LORA", RANK, ALPHA)
    assert held["base_model_name_or_path"] == str(saved)
    assert record.weights.tensors == 2 * 2 * 7
    assert record.weights.scaling == [ALPHA / RANK]
    names = load_file(folder / ADAPTER)
    assert f"base_model.model.{QUERY}.lora_A.weight" in names


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            renamed(ADAPTER, "base_model.", ""),
            "0 of 28 expected keys.*peft would silently skip the others",
        ),
        (without_tensor(ADAPTER), "27 of 28 expected keys"),
        (truncated(ADAPTER), "cannot be read"),
        (other_alpha, "says alpha 32 and rank 4, trained at scale"),
        (without_file("adapter_config.json"), "adapter_config.json: cannot be read as JSON"),
    ],
)
def test_a_damaged_adapter_is_told_before_anything_is_loaded(
    adapter: tuple[Path, ExportRecord], tmp_path: Path, damage: Any, said: str
) -> None:
    copy = Path(shutil.copytree(adapter[0], tmp_path / "copy"))
    damage(copy)
    with pytest.raises(CheckpointError, match=said):
        check_adapter(copy, adapter[1])


# Refusals ---------------------------------------------------------------------------------------


def test_tensors_of_another_policy_are_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"not of a policy of family janus.*begin with janus"):
        family_of("janus").base_names({"transformer_blocks.0.norm.weight": torch.ones(1)})
    config = run_config(saved, "full")
    with pytest.raises(CheckpointError, match="another base"):
        merge(config, {f"janus.{QUERY}.weight": torch.ones(3)}, tmp_path / "out")


def test_an_export_that_equals_the_base_is_refused(saved: Path, tmp_path: Path) -> None:
    config = run_config(saved, "full")
    with pytest.raises(CheckpointError, match="equal the base's"):
        merge(config, trained(config, scale=0.0), tmp_path / "out")
    config = run_config(saved, "lora")
    tensors = family_of("janus").base_names(trained(config, scale=0.0))
    with pytest.raises(CheckpointError, match="every lora_B is zero"):
        export_adapter(BaseJanus.open(str(saved)), tensors, config.policy.lora, tmp_path)


def test_what_is_no_janus_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"empty is no model directory: .*config\.json"):
        BaseJanus.open(str(tmp_path / "empty"))
    (tmp_path / "empty" / "config.json").write_text('{"model_type": "multi_modality"}')
    with pytest.raises(ConfigError, match="model_type 'multi_modality'"):
        BaseJanus.open(str(tmp_path / "empty"))
    (tmp_path / "empty" / "config.json").write_text('{"model_type": "janus"}')
    with pytest.raises(ConfigError, match=r"neither model\.safetensors nor"):
        BaseJanus.open(str(tmp_path / "empty")).weight_files()
    with pytest.raises(ConfigError, match="neither a directory nor a model of the hub"):
        BaseJanus.open("nobody/such-a-model")
