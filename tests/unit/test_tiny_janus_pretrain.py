"""Pre-training of Tiny Janus: what is trained is what reinforcement learning will compute."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import JanusForConditionalGeneration

from atelier.data.edit_check import check_edit
from atelier.data.gold import check
from atelier.data.scenes import prompt, split_of
from atelier.errors import DataError
from atelier.policies.janus.conversation import Context
from atelier.policies.janus.log_probs import ImageForm
from atelier.policies.janus.module import JanusModule, Segment
from atelier.policies.janus.pretrain import network
from atelier.policies.janus.pretrain.cases import make_case, make_images
from atelier.policies.janus.pretrain.network import Batch
from atelier.policies.janus.pretrain.options import Options
from atelier.policies.janus.pretrain.promote import promote_snapshot
from atelier.policies.janus.pretrain.run import pretrain
from atelier.policies.janus.pretrain.sequences import (
    DRAWING,
    SEEING,
    Task,
    Writer,
    join,
    stack,
    widen,
)
from atelier.policies.janus.pretrain.world import case_rows, writer
from atelier.policies.janus.rows import Drawn, Seen
from atelier.policies.janus.rows import stack as stack_contexts
from atelier.policies.janus.tiny import TinyJanusSizes, build_model, build_tokenizer
from atelier.policies.language.log_probs import TextForm
from atelier.policies.pretraining.snapshots import RECORD
from tests.support.pretraining import pretrain_here

SIZES = TinyJanusSizes(width=32, layers=2, heads=2, feed_forward=48, vision_layers=1)
TOKENS = SIZES.image_tokens
CASES = [make_case("train", 0, index) for index in range(3)]
ROWS = [case_rows(case, 3 * n, writer(TOKENS), random.Random(n)) for n, case in enumerate(CASES)]


@pytest.fixture(scope="module")
def model() -> Any:
    """Untrained, but with weights large enough for every part to show in what it predicts."""
    torch.set_num_threads(1)
    built = build_model(build_tokenizer(), SIZES)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in built.named_parameters():
            if "vqmodel" not in name:
                weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    return built


def batch_of(task: Task, codes: torch.Tensor, images: np.ndarray) -> tuple[Batch, Any]:
    rows = [row for own in ROWS for row in own[task]][:5]
    writing = writer(TOKENS)
    table = stack(rows, writing.pad)
    table = widen(table, table.tokens.shape[1] + 3, writing.pad)
    given, drawn = torch.from_numpy(table.given).long(), torch.from_numpy(table.drawn).long()
    return Batch(
        tokens=torch.from_numpy(table.tokens).long(),
        places=torch.from_numpy(table.places).long(),
        target=torch.from_numpy(table.target).long(),
        width=int((table.target[:, 1] - table.target[:, 0]).max()),
        pictures=torch.from_numpy(images)[given] if task in SEEING else None,
        given=codes[given] if task in ("redraw", "edit") else None,
        drawn=codes[drawn] if task in DRAWING else None,
    ), rows


@pytest.mark.parametrize("task", [*DRAWING, *SEEING])
def test_its_loss_is_the_negative_log_prob_of_a_replay(model: Any, task: Task) -> None:
    """The same contexts, images and targets, through the module that is trained later on."""
    images = make_images(CASES, "train", 0, 0)
    codes = torch.randint(SIZES.codes, (len(images), TOKENS))
    batch, rows = batch_of(task, codes, images)
    module, writing = JanusModule(model), writer(TOKENS)
    with torch.no_grad():
        hidden = network.read(model, network.embed(model, [batch]), batch.places)
        found = network.loss(model, hidden, batch)
        seen = network.look(model, torch.from_numpy(images))
        likely = []
        for row in rows:
            start, end = row.target
            picture = Seen(seen[row.given]) if task in SEEING else Drawn(codes[row.given])
            context = replayed_context(writing, row)
            pictures = [] if row.given < 0 else [picture]
            contexts = stack_contexts(
                [context], [pictures], writing.pad, hidden=hidden_tokens(writing, row)
            )
            target = codes[row.drawn] if task in DRAWING else torch.tensor(row.tokens[start:end])
            form = ImageForm("conditional") if task in DRAWING else TextForm()
            likely.append(module(Segment(contexts, target[None], form))[0])
    if task in DRAWING:
        expected = -torch.stack(likely).mean()
    else:
        first = torch.stack([one[0] for one in likely])
        rest = torch.cat([one[1:] for one in likely])
        expected = -0.5 * first.mean() - 0.5 * rest.mean()
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


def replayed_context(writing: Writer, row: Any) -> Context:
    """The row's context, with the token back in its place that nobody looks at."""
    tokens = list(row.tokens[: row.target[0]])
    for index, place in enumerate(row.places[: row.target[0]]):
        if place > index:
            tokens.insert(index, writing.conversation.eos)
            break
    return Context(tuple(tokens), row.prompt)


def hidden_tokens(writing: Writer, row: Any) -> tuple[int, ...]:
    left_out = row.places[row.target[0] - 1] != row.target[0] - 1
    return (writing.conversation.eos,) if left_out else ()


def test_pictures_are_seen_as_the_library_sees_them(model: Any) -> None:
    images = torch.from_numpy(make_images(CASES, "train", 0, 0))
    pixels = images.permute(0, 3, 1, 2).float() / 127.5 - 1
    with torch.no_grad():
        theirs = model.model.get_image_features(pixels).pooler_output
        torch.testing.assert_close(network.look(model, images), theirs, atol=1e-5, rtol=1e-5)


def test_cases_are_of_their_split_and_their_images_show_them() -> None:
    for split in ("train", "heldout"):
        cases = [make_case(split, 1, index) for index in range(20)]
        assert cases == [make_case(split, 1, index) for index in range(20)]
        images = make_images(cases, split, 1, 0)
        for index, case in enumerate(cases):
            for offset, shown in enumerate(case.shown):
                assert split_of(shown) == split
                assert check(images[3 * index + offset], shown).score == 1.0
            assert check(images[3 * index + 1], case.scene).score < 1.0
            done = check_edit(images[3 * index + 2], case.edit)
            assert (done.following, done.preserving) == (1.0, 1.0)


def test_rows_say_what_they_should() -> None:
    writing, decode = writer(TOKENS), build_tokenizer().decode
    for number, (case, rows) in enumerate(zip(CASES, ROWS, strict=True)):
        answers = [decode(row.tokens[slice(*row.target)]) for row in rows["judge"]]
        assert [answer.startswith("Yes<") for answer in answers] == [True, False, True, False]
        assert [row.given - 3 * number for row in rows["judge"]] == [0, 1, 1, 0]
        for task, own in rows.items():
            for row in own:
                end = row.target[1]
                assert end == len(row.tokens) == len(row.places)
                assert (row.drawn >= 0) == (task in DRAWING)
                words = decode([token for token in row.tokens[slice(*row.prompt)] if token >= 0])
                if task in ("draw", "judge", "redraw"):
                    assert prompt(case.scene) in words or prompt(case.other) in words
                if task == "edit":
                    assert words == case.edit.instruction
        (redrawn,) = rows["redraw"]
        assert redrawn.drawn == 3 * number
    assert writing.conversation.image_tokens == TOKENS


def test_a_hidden_end_keeps_its_place() -> None:
    writing = writer(TOKENS)
    open_row, hidden_row = (
        writing.redraw("a red circle", "No, there is more.", 0, 1, hide) for hide in (False, True)
    )
    end = open_row.tokens.index(writing.conversation.eos)
    assert hidden_row.tokens == open_row.tokens[:end] + open_row.tokens[end + 1 :]
    assert hidden_row.places == open_row.places[:end] + open_row.places[end + 1 :]
    assert hidden_row.target == (open_row.target[0] - 1, open_row.target[1] - 1)


def test_tables_of_other_widths_join() -> None:
    writing = writer(TOKENS)
    short, long = (
        writing.draw("one red circle", 0),
        writing.draw("a red circle above a blue cross", 1),
    )
    table = join([stack([short], writing.pad), stack([long], writing.pad)], writing.pad)
    more = len(long.tokens) - len(short.tokens)
    assert table.tokens[0, len(short.tokens) :].tolist() == [writing.pad] * more
    assert table.tokens[1].tolist() == long.tokens
    assert table.drawn.tolist() == [0, 1]


TINY = {
    **{"device": "cpu", "compile": False, "workers": 1, "cases": 12, "heldout": 3},
    **{"width": 32, "layers": 1, "heads": 1, "feed_forward": 32, "codes": 32},
    **{"vq_steps": 2, "vq_batch": 4, "steps": 4, "warmup_steps": 1, "learning_rate": 0.02},
    **{"own_images": 6, "own_at": (0.5,)},
    **{"draw": 3, "judge": 4, "ask": 2, "describe": 2, "redraw": 4, "edit": 3},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole pre-training, in small."""
    out = tmp_path_factory.mktemp("pretraining")
    pretrain_here(pretrain, Options(out=out, **TINY))
    return out


def test_the_whole_pretraining_leaves_a_snapshot(trained: Path) -> None:
    (snapshot,) = trained.glob("step-000004-draw-*")
    record = json.loads((snapshot / RECORD).read_text())
    assert record["snapshot"]["step"] == 4
    assert record["snapshot"]["loss"].keys() == set(DRAWING) | set(SEEING)
    assert all(value > 0 for value in record["snapshot"]["loss"].values())
    assert record["snapshot"]["introspect"].keys() == {"first", "accepted", "redrawn", "final"}
    assert record["ceiling"]["renders"] == 1.0
    model = JanusForConditionalGeneration.from_pretrained(snapshot)
    untrained = build_model(build_tokenizer(), sizes_of(record["options"]))
    changed = {
        name.split(".")[1]
        for (name, ours), theirs in zip(
            model.named_parameters(), untrained.parameters(), strict=True
        )
        if not torch.allclose(ours, theirs, atol=2e-3)
    }
    assert {"vqmodel", "vision_model", "aligner", "language_model"} <= changed
    assert {"generation_embeddings", "generation_aligner", "generation_head"} <= changed


def sizes_of(options: dict[str, Any]) -> TinyJanusSizes:
    named = ("codes", "width", "layers", "heads", "feed_forward")
    return TinyJanusSizes(**{name: options[name] for name in named})


def test_a_snapshot_is_promoted_with_its_card(trained: Path, tmp_path: Path) -> None:
    (snapshot,) = trained.glob("step-*")
    promote_snapshot(snapshot, tmp_path / "asset", heldout=2)
    text = (tmp_path / "asset/README.md").read_text()
    assert "train --out DIR --device cpu --workers 1 --no-compile --steps 4" in text
    assert "--cases 12" in text
    assert "4 steps" in text
    measured = json.loads((tmp_path / "asset" / RECORD).read_text())["measured"]
    assert measured["heldout"] == 2
    with pytest.raises(DataError, match="no snapshot"):
        promote_snapshot(trained, tmp_path / "other", heldout=2)


def test_its_image_tokenizer_can_be_the_start_of_another(trained: Path, tmp_path: Path) -> None:
    (snapshot,) = trained.glob("step-*")
    options = Options(out=tmp_path, **{**TINY, "vq": snapshot, "vq_seconds": 0.0, "steps": 1})
    pretrain_here(pretrain, options)
    (again,) = tmp_path.glob("step-*")
    first, second = (
        JanusForConditionalGeneration.from_pretrained(folder).model.vqmodel.state_dict()
        for folder in (snapshot, again)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
