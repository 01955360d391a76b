"""A Janus written in the original layout, read back, and the documented table of names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from torch import Tensor

from atelier.cli.application import application
from atelier.config.paths import repository_root
from atelier.errors import AtelierError, CheckpointError, ConfigError
from atelier.export.janus import original
from atelier.export.janus.original import write_original
from atelier.export.language.base import EMBEDDING, HEAD
from atelier.export.manifest import write_manifest
from atelier.policies.janus.loading import load
from atelier.policies.janus.original_layout import from_original, to_original
from tests.support.exports import stored
from tests.support.janus_exports import save_base
from tests.support.random_janus import WIDE, Sizes, build_model

UNUSED = {
    "vision_model.vision_tower.attn_pool.latent": torch.ones(1, 1, 32),
    "gen_vision_model.quantize.codebook_used": torch.ones(4),
}
ORIGINAL_HEAD = "language_model.lm_head.weight"


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a merged export."""
    run = tmp_path_factory.mktemp("run")
    folder = save_base(run / "export" / "merged", shard="200KB")
    write_manifest(folder)
    return run


@pytest.fixture
def like(tmp_path: Path) -> Path:
    """The original model of the same sizes, as it is released: pickles in two files."""
    folder = tmp_path / "original"
    folder.mkdir()
    weights = {**to_original(build_model(seed=9).state_dict()), **UNUSED}
    names = sorted(weights)
    for number, part in enumerate((names[:99], names[99:])):
        torch.save({name: weights[name] for name in part}, folder / f"pytorch_model-{number}.bin")
    (folder / "config.json").write_text('{"model_type": "multi_modality"}')
    (folder / "tokenizer.json").write_text("theirs")
    (folder / "pytorch_model.bin.index.json").write_text("{}")
    return folder


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], value) and found[name].dtype == value.dtype
        for name, value in expected.items()
    )


# There and back ---------------------------------------------------------------------------------


def test_a_runs_export_is_written_and_comes_back_bit_for_bit(merged: Path, tmp_path: Path) -> None:
    done = write_original(merged, tmp_path / "out")
    there = stored(tmp_path / "out")
    assert same(there, to_original(build_model().state_dict()))
    assert same(from_original(there), stored(merged / "export" / "merged"))
    assert done.tensors == len(there)
    assert done.taken_over == 0
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".safetensors"}


def test_what_was_written_can_be_the_start_of_a_run(merged: Path, tmp_path: Path) -> None:
    write_original(merged, tmp_path / "out")
    torch.save(stored(tmp_path / "out"), tmp_path / "start.pth")
    again = load(merged / "export" / "merged", weights=tmp_path / "start.pth").model.state_dict()
    expected = build_model().state_dict()
    for name, value in again.items():
        if "codebook" not in name and "quantize.embedding" not in name:
            assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [WIDE, Sizes(tied=True)])
def test_any_sizes_and_dtype_and_a_shared_head_gets_its_own_name(
    tmp_path: Path, sizes: Sizes, dtype: torch.dtype
) -> None:
    base = save_base(tmp_path / "base", sizes, dtype=dtype)
    write_original(base, tmp_path / "out")
    there, here = stored(tmp_path / "out"), stored(base)
    assert {one.dtype for one in there.values()} == {dtype}
    assert torch.equal(there[ORIGINAL_HEAD], here[EMBEDDING if sizes.tied else HEAD])
    assert same(from_original(there), {**here, HEAD: there[ORIGINAL_HEAD]})


def test_large_ones_are_sharded(
    merged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(original, "SHARD", "300KB")
    write_original(merged, tmp_path / "out")
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 2
    assert (tmp_path / "out" / "model.safetensors.index.json").exists()
    assert same(stored(tmp_path / "out"), to_original(build_model().state_dict()))


def test_like_the_original_it_is_a_whole_model(merged: Path, tmp_path: Path, like: Path) -> None:
    """Files and unused weights are the original's, all others the export's."""
    done = write_original(merged, tmp_path / "out", like)
    there = stored(tmp_path / "out")
    assert same(there, {**to_original(build_model().state_dict()), **UNUSED})
    assert done.taken_over == len(UNUSED)
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"config.json", "tokenizer.json", "model.safetensors"}
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "theirs"


# Refusals ---------------------------------------------------------------------------------------


def of_another_width(like: Path) -> None:
    weights = {**to_original(build_model(WIDE).state_dict()), **UNUSED}
    rewrite(like, weights)


def with_another_layer(like: Path) -> None:
    weights = {**to_original(build_model().state_dict()), **UNUSED}
    rewrite(like, {**weights, "language_model.model.layers.2.mlp.up_proj.weight": torch.ones(2)})


def in_this_layout(like: Path) -> None:
    rewrite(like, build_model().state_dict())


def empty(like: Path) -> None:
    rewrite(like, {})


def damaged(like: Path) -> None:
    (like / "pytorch_model-0.bin").write_bytes(b"no pickle")


def weights_alone(like: Path) -> None:
    (like / "config.json").unlink()


def rewrite(like: Path, weights: dict[str, Tensor]) -> None:
    for file in like.glob("*.bin"):
        file.unlink()
    save_file({name: one.contiguous() for name, one in weights.items()}, like / "m.safetensors")


@pytest.mark.parametrize(
    ("damage", "error", "said"),
    [
        (of_another_width, CheckpointError, "another model's"),
        (with_another_layer, CheckpointError, r"only there or only in the export.*layers\.2"),
        (in_this_layout, ConfigError, "no weights in the original layout"),
        (empty, ConfigError, "no weights in the original layout"),
        (damaged, ConfigError, r"pytorch_model-0\.bin: is no file of weights"),
        (weights_alone, ConfigError, r"has no config\.json to take over"),
    ],
)
def test_another_original_is_refused_and_nothing_is_left(
    merged: Path,
    tmp_path: Path,
    like: Path,
    damage: Callable[[Path], None],
    error: type[AtelierError],
    said: str,
) -> None:
    damage(like)
    with pytest.raises(error, match=said):
        write_original(merged, tmp_path / "here" / "out", like)
    assert not any((tmp_path / "here").glob("*"))


def test_what_has_no_merged_export_is_named(merged: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a model directory nor a run with a merged"):
        write_original(tmp_path, tmp_path / "out")
    with pytest.raises(ConfigError, match="is there already"):
        write_original(merged, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"OUT .*file: cannot be a folder: File exists"):
        write_original(merged, tmp_path / "file" / "out")


def test_an_altered_export_is_not_converted(tmp_path: Path) -> None:
    folder = save_base(tmp_path / "merged")
    write_manifest(folder)
    weights = load_file(folder / "model.safetensors")
    weights[HEAD][0] += 1
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"model\.safetensors: altered"):
        write_original(folder, tmp_path / "out")


def test_a_weight_without_a_name_there_is_told(tmp_path: Path) -> None:
    folder = save_base(tmp_path / "merged")
    weights = {**load_file(folder / "model.safetensors"), "model.value.weight": torch.ones(1)}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"model\.value\.weight is no weight of a Janus"):
        write_original(folder, tmp_path / "out")


def test_a_disk_that_writes_something_else_is_noticed(
    merged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(weights: dict[str, Tensor], folder: Path, **_: object) -> None:
        weights = {**weights, ORIGINAL_HEAD: weights[ORIGINAL_HEAD] + 1}
        save_file(weights, folder / "model.safetensors")

    monkeypatch.setattr(original, "save_torch_state_dict", wrong)
    with pytest.raises(CheckpointError, match=r"1 of \d+ weights are others.*lm_head"):
        write_original(merged, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# The verb and the page --------------------------------------------------------------------------


def test_the_verb(merged: Path, tmp_path: Path) -> None:
    arguments = ["export", "original", str(merged), str(tmp_path / "out")]
    done = CliRunner().invoke(application, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert "298 tensors in the original layout, read back and equal" in done.output
    with pytest.raises(ConfigError, match="is there already"):
        CliRunner().invoke(application, arguments, catch_exceptions=False)


def documented() -> list[tuple[re.Pattern[str], str]]:
    """Rows of the page's table as rules: pattern of the name in transformers, original name."""
    page = (repository_root() / "docs" / "export.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", page, re.MULTILINE)
    return [(re.compile(as_pattern(here)), there) for here, there in rows]


def as_pattern(name: str) -> str:
    escaped = re.escape(name).replace(r"\*", "(?P<rest>.+)")
    return re.sub(r"\\\{(\w)\\\}", lambda match: rf"(?P<{match[1]}>\d+)", escaped)


def test_the_table_of_the_page_is_what_the_converter_does() -> None:
    rules, here = documented(), build_model().state_dict()
    found = set()
    for name in here:
        matches = [(rule.fullmatch(name), there) for rule, there in rules if rule.fullmatch(name)]
        assert matches, f"{name} is not in the table"
        match, there = matches[0]
        assert match is not None
        values = match.groupdict()
        translated = there.replace("*", values.pop("rest", ""))
        found.add(translated.format(**values))
    assert found == set(to_original(here))
