"""Mixtures: several data sets in one table, drawn by their weights, rewarded by their own mixes."""

import csv
import io
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from atelier.config.paths import repository_root
from atelier.config.schema import RunConfig
from atelier.config.sections.data import DataConfig
from atelier.config.sections.evaluation import EvaluationConfig
from atelier.config.without_effect import without_effect
from atelier.data.mixtures import in_turns
from atelier.data.prepare import input_files, prepare
from atelier.data.prompts import Prompt, read_prompts
from atelier.data.readers import read_prompts_file
from atelier.data.readers.deepgen_eval import differences, read_datasets
from atelier.data.samplers import SHARE, row_indices
from atelier.data.scenes import from_dict
from atelier.errors import DataError
from atelier.stages.prompts_here import prompt_warnings, prompts_here
from atelier.training.batches import drawn_mix, step_samples

REAL = repository_root().parent / "shared" / "data"
MIX = {"words": {"ocr": 0.7, "yes_no": 0.3}, "shapes": {"yes_no": 1.0}}


def mixture(mode="sample_proportional", words=None, shapes=None, **data):
    own = {
        "words": {"scene_kind": "word", "rewards": MIX["words"], **(words or {})},
        "shapes": {"scene_kind": "shapes", "rewards": MIX["shapes"], **(shapes or {})},
    }
    sizes = {"train_prompts": 60, "heldout_prompts": 12}
    return DataConfig.model_validate(
        {"source": "mixture", "sampling_mode": mode, "datasets": own, **sizes, **data}
    )


def tables(folder):
    return tuple(read_prompts(folder / f"{name}.parquet") for name in ("train", "heldout"))


# Inline ------------------------------------------------------------------------------------------


def test_the_table_says_of_each_prompt_what_rewards_it_and_how_often_it_is_drawn(tmp_path):
    summary = prepare(mixture(words={"sample_weight": 3.0, "train_prompts": 90}), tmp_path)
    train, heldout = tables(tmp_path)
    assert Counter(one.metadata["dataset"] for one in train) == {"words": 90, "shapes": 60}
    for one in (*train, *heldout):
        name = one.metadata["dataset"]
        assert one.dataset_id == {"shapes": 0, "words": 1}[name]
        assert one.metadata["rewards"] == MIX[name]
        assert (from_dict(one.metadata["scene"]).word is not None) == (name == "words")
    assert {(one.metadata["dataset"], one.metadata[SHARE]) for one in train} == {
        ("words", 3.0),
        ("shapes", 1.0),
    }
    assert summary["mixture"]["datasets"][1] == {
        **{"dataset_id": 1, "name": "words", "sample_weight": 3.0, "rewards": MIX["words"]},
        **{"train": 90, "heldout": 12, "drawn": pytest.approx(270 / 330), "without_target": 0},
    }
    assert summary["mixture"]["datasets"][0]["without_target"] is None, "nothing reads its texts"


def test_the_order_in_which_data_sets_are_named_does_not_matter(tmp_path):
    one = mixture()
    other = one.model_copy(update={"datasets": dict(reversed(one.datasets.items()))})
    digests = [prepare(data, tmp_path)["train"]["digest"] for data in (one, other)]
    assert digests[0] == digests[1]


def test_the_first_held_out_prompts_are_of_all_data_sets(tmp_path):
    prepare(mixture(shapes={"heldout_prompts": 4}), tmp_path)
    _, heldout = tables(tmp_path)
    assert Counter(one.metadata["dataset"] for one in heldout[:8]) == {"words": 6, "shapes": 2}
    assert [one.prompt_id for one in heldout if one.dataset_id == 1] == list(range(12))


def test_in_turns_leaves_one_data_set_as_it_is():
    prompts = [Prompt(number, 3, f"p{number}") for number in (4, 0, 2)]
    assert list(in_turns(prompts)) == prompts


def test_what_one_data_set_holds_out_no_other_trains_on(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"prompt {i}\n" for i in range(40)))
    (tmp_path / "a_test.txt").write_text("apart\n")
    (tmp_path / "b.txt").write_text("".join(f"another {i}\n" for i in range(40)))
    (tmp_path / "b_test.txt").write_text("prompt 3\nprompt 5\n")
    datasets = {
        name: {
            **{"source": "plain", "path": str(tmp_path / f"{name}.txt")},
            **{"heldout_path": str(tmp_path / f"{name}_test.txt"), "rewards": {"yes_no": 1.0}},
        }
        for name in ("a", "b")
    }
    data = DataConfig.model_validate({"source": "mixture", "datasets": datasets})
    summary = prepare(data, tmp_path / "out")
    train, heldout = tables(tmp_path / "out")
    assert summary["dropped_because_held_out"] == 2
    assert {one.text for one in train}.isdisjoint(one.text for one in heldout)
    assert len(train) == 78
    assert {path.name for path in input_files(data, Path("/"))} == {
        *("a.txt", "a_test.txt", "b.txt", "b_test.txt")
    }


def test_malformed_rows_of_a_data_set_are_left_out_and_told(tmp_path):
    """Of the training and of the held-out file, each of its own format."""
    bench = tmp_path / "bench.csv"
    rows = [f"a dog {n}" for n in range(40)]
    bench.write_text(points_file(rows, broken=3))
    held = tmp_path / "held.csv"
    held.write_text(points_file(["a cat"] * 3, broken=1))
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"a bird {n}\n" for n in range(40)))
    datasets = {
        "bench": {"source": "unigenbench", "path": str(bench)},
        "lines": {
            **{"source": "plain", "path": str(lines)},
            **{"heldout_path": str(held), "heldout_source": "unigenbench"},
        },
    }
    data = {"source": "mixture", "datasets": datasets, "malformed_rows": "leave_out"}
    summary = prepare(DataConfig.model_validate(data), tmp_path / "out")
    assert summary["malformed"]["left_out"] == 2
    assert {Path(one.split(":")[0]).name for one in summary["malformed"]["rows"]} == {
        *("bench.csv", "held.csv")
    }
    datasets["lines"]["malformed_rows"] = "refuse"
    with pytest.raises(DataError, match=r"held\.csv: line 3"):
        prepare(DataConfig.model_validate(data), tmp_path / "out")
    del datasets["lines"]["heldout_path"]
    with pytest.raises(ValueError, match=r"data\.datasets\.lines\.heldout_source: is the format"):
        run_config(data=data, rewards={"yes_no": {"judge": "j"}})


def points_file(texts, broken):
    """A file of UniGenBench, with one row that is no JSON."""
    points = json.dumps({"Testpoints": ["Style"], "Testpoint Description": ["ink"]})
    cells = [points if at != broken else points[:-1] for at in range(len(texts))]
    with io.StringIO() as file:
        csv.writer(file).writerows([["prompt", "sub_dims"], *zip(texts, cells, strict=True)])
        return file.getvalue()


def test_held_out_prompts_of_a_file_are_no_training_sets(tmp_path):
    path = training(tmp_path, 40)
    named = {"heldout_source": "deepgen_eval", "heldout_path": str(evaluation(tmp_path))}
    data = DataConfig.model_validate({"source": "deepgen", "path": str(path), **named})
    summary = prepare(data, tmp_path / "out")
    assert summary["heldout"]["prompts"] == 2
    assert [one["heldout"] for one in summary["mixture"]["datasets"]] == [0, 0]


def training(folder, count):
    """A training set of DeepGen-RL whose first file lacks quotes in every fourth line."""
    signs = (f'sign "W{n}"' if n % 4 else f"sign “W{n}”" for n in range(count))
    (folder / "signs.txt").write_text("\n".join(signs))
    (folder / "plain.txt").write_text("".join(f"a bird {n}\n" for n in range(count)))
    path = folder / "train.yaml"
    path.write_text(
        "datasets:\n- {name: signs, path: signs.txt, rewards: [{ocr: 0.7}, {yes_no: 0.3}]}\n"
        "- {name: plain, path: plain.txt, rewards: [{yes_no: 1}]}\n"
    )
    return path


def test_prompts_without_a_text_to_read_are_counted(tmp_path):
    path = training(tmp_path, 40)
    named = {"heldout_source": "deepgen_eval", "heldout_path": str(evaluation(tmp_path))}
    data = {"source": "deepgen", "path": str(path), **named}
    summary = prepare(DataConfig.model_validate(data), tmp_path / "out")
    assert [one["without_target"] for one in summary["mixture"]["datasets"]] == [10, None]
    rewards = {"ocr": {}, "yes_no": {"judge": "j"}}
    own = {"suite": "yes_no", "yes_no": {"judge": "j"}}
    found = prompts_here(run_config(data=data, rewards=rewards, evaluation=own))
    assert found.without_target == {"signs": 10}


def test_a_data_set_of_which_no_prompt_names_its_text_is_refused(tmp_path):
    path = training(tmp_path, 40)
    (tmp_path / "signs.txt").write_text("sign “ONE”\nsign “TWO”\n")
    data = DataConfig.model_validate({"source": "deepgen", "path": str(path)})
    with pytest.raises(DataError, match=r"signs: rewarded by ocr, but none of its 2.*curly quotes"):
        prepare(data, tmp_path / "out")


def test_too_few_scenes_are_told_of_their_data_set(tmp_path):
    with pytest.raises(DataError, match=r"data\.datasets\.shapes: data\.train_prompts 1000000"):
        prepare(mixture(shapes={"train_prompts": 1_000_000}), tmp_path)


def run_config(**changes):
    return RunConfig.model_validate(
        {
            "data": mixture().model_dump(),
            "judges": {"j": {"placement": "in_process", "model": "assets/tiny-judge"}},
            "rewards": {"ocr": {}, "yes_no": {"judge": "j"}},
            "rollout": {"group_size": 4, "micro_batch_size": 4},
            **changes,
        }
    )


def test_steps_are_drawn_by_the_shares_and_never_twice_alike(tmp_path):
    prepare(mixture(words={"sample_weight": 3.0}), tmp_path)
    train, _ = tables(tmp_path)
    drawn = [row_indices(train, step, 8, seed=5) for step in range(1, 301)]
    assert all(len({*step}) == 8 for step in drawn)
    assert len({tuple(step) for step in drawn}) == 300
    words = sum(train[place].metadata["dataset"] == "words" for step in drawn for place in step)
    assert words / 2400 == pytest.approx(0.75, abs=0.03)
    assert drawn[41] == row_indices(train, 42, 8, seed=5)  # what a resumed run draws


def test_a_step_says_which_data_sets_it_has(tmp_path):
    prepare(mixture(), tmp_path)
    train, _ = tables(tmp_path)
    config = run_config(train={"prompts_per_step": 8})
    samples = step_samples(train, 1, config)
    own = Counter(one.prompt.metadata["dataset"] for one in samples)
    told = drawn_mix(samples, 1, config)
    assert told == {f"mixture/{name}": count / 32 for name, count in own.items()}
    # Groups that teach nothing get prompts that the step does not have.
    again = step_samples(train, 1, config, round=1)
    asked = [{one.prompt.text for one in each} for each in (samples, again)]
    assert not asked[0] & asked[1]


def test_the_plan_counts_the_prompts_of_all_data_sets():
    found = prompts_here(run_config())
    assert (found.train, found.train_asked) == (120, 120)
    assert (found.heldout, found.heldout_asked) == (24, 24)


# The YAML of DeepGen-RL --------------------------------------------------------------------------

TRAIN = """\
sampling_mode: {mode}
datasets:
  - name: texts
    path: texts.txt
    rewards:
      - ocr: 0.7
      - clip_sim: 0.3
  - name: general
    path: general.txt
    rewards: [clip_sim: 1.0]
"""


def deepgen(folder, mode="weight_only", text=TRAIN, quoted=40, general=360):
    (folder / "texts.txt").write_text("".join(f'a sign "W{i}"\n' for i in range(quoted)))
    (folder / "general.txt").write_text("".join(f"a dog {i}\n" for i in range(general)))
    path = folder / "train.yaml"
    path.write_text(text.format(mode=mode))
    return DataConfig(source="deepgen", path=str(path), train_prompts=1000)


@pytest.mark.parametrize(("mode", "share"), [("weight_only", 0.5), ("sample_proportional", 0.1)])
def test_equal_weights_are_kept_in_either_mode(tmp_path, mode, share):
    """In the original, weights that are all 1 switch weight_only off."""
    summary = prepare(deepgen(tmp_path, mode), tmp_path / "out")
    train, _ = tables(tmp_path / "out")
    drawn = [place for step in range(1, 201) for place in row_indices(train, step, 10, seed=0)]
    texts = sum(train[place].metadata["dataset"] == "texts" for place in drawn) / len(drawn)
    assert texts == pytest.approx(share, abs=0.04)
    assert summary["mixture"]["datasets"][0]["drawn"] == pytest.approx(share, abs=0.03)


def test_prompts_without_quotes_are_not_rewarded_by_what_reads_text(tmp_path):
    data = deepgen(tmp_path)
    lines = ['a sign "ABE"', "no words at all", 'first "ONE" then "中文"', "“curly” quotes only"]
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    found = read_prompts_file("deepgen", Path(data.path))[:4]
    both, without = {"clip_sim": 0.3, "ocr": 0.7}, {"clip_sim": 0.3}
    assert [one.metadata["rewards"] for one in found] == [both, without, both, without]
    assert [one.metadata.get("target") for one in found] == ["ABE", None, "ONE", None]
    assert found[2].metadata["targets"] == ["ONE", "中文"]


def test_a_line_that_nothing_could_reward_is_named(tmp_path):
    only = TRAIN.replace("      - clip_sim: 0.3\n", "")
    data = deepgen(tmp_path, text=only)
    (tmp_path / "texts.txt").write_text('a sign "ABE"\n\nno words at all\na "sign" with "half\n')
    with pytest.raises(DataError) as error:
        read_prompts_file("deepgen", Path(data.path))
    assert "line 3: no text in straight double quotes" in str(error.value)
    assert "line 4: unbalanced double quotes" in str(error.value)


@pytest.mark.parametrize(
    ("theirs", "hint"),
    [
        ("clipsim", "did you mean rewards.clip_similarity?"),
        ("unifiedreward_thnik", "did you mean rewards.unified_reward_think?"),
        ("hps", "docs/reward-slots.md"),
    ],
)
def test_an_unknown_reward_is_refused_before_anything_starts(tmp_path, theirs, hint):
    data = deepgen(tmp_path, text=TRAIN.replace("clip_sim: 1.0", f"{theirs}: 1.0"))
    config = run_config(data=data.model_dump(), rewards={"ocr": {}, "clip_similarity": {}})
    with pytest.raises(DataError, match=r"line 10: .*unknown reward") as error:
        prompts_here(config)
    assert hint in str(error.value)


def test_the_real_mixture_with_all_its_files(tmp_path):
    if not REAL.is_dir():
        pytest.skip("needs ../shared/data")
    for file in (REAL / "deepgen").iterdir():
        shutil.copyfile(file, tmp_path / file.name)
    for name in ("qwenimage_textrender", "text_render_less"):
        shutil.copyfile(REAL / "ocr" / "sample_300.txt", tmp_path / f"{name}.txt")
    for name in ("blip3o_60k", "share_4o_img"):
        shutil.copyfile(tmp_path / "corebench.txt", tmp_path / f"{name}.txt")
    path = tmp_path / "deepgen_train.yaml"
    data = DataConfig(source="deepgen", path=str(path), train_prompts=9999)
    summary = prepare(data, tmp_path / "out")
    drawn = {one["name"]: one["drawn"] for one in summary["mixture"]["datasets"]}
    sizes = {one["name"]: one["train"] for one in summary["mixture"]["datasets"]}
    weighed = {
        name: size * (3 if "text" in name or "ocr" in name else 1) for name, size in sizes.items()
    }
    total = sum(weighed.values())
    assert drawn == {name: pytest.approx(one / total) for name, one in weighed.items()}


# Evaluation sets ---------------------------------------------------------------------------------

EVALUATION = """\
datasets:
  - name: bench
    path: bench.csv
    cfg_scale: 4.0
    num_inference_steps: 50
    duplicates: 4
    scoring: {scoring}
  - {{name: captions, path: captions.jsonl}}
"""
POINTS = json.dumps({"Testpoints": ["Style"], "Testpoint Description": ["an oil painting"]})


def evaluation(folder, scoring="unigenbench/en", text=EVALUATION):
    quoted = POINTS.replace('"', '""')
    (folder / "bench.csv").write_text(f'index,prompt,sub_dims\n7,a cat,"{quoted}"\n')
    (folder / "captions.jsonl").write_text('{"caption": "a dog", "key": 1}\n')
    path = folder / "eval.yaml"
    path.write_text(text.format(scoring=scoring))
    return path


@pytest.mark.parametrize(
    "scoring",
    ["unigenbench", "unigenbench/en", "{type: unigenbench, language: en}", "[unigenbench]"],
)
def test_evaluation_sets_are_read(tmp_path, scoring):
    cat, dog = read_prompts_file("deepgen_eval", evaluation(tmp_path, scoring))
    assert (cat.text, cat.dataset_id, cat.prompt_id) == ("a cat", 0, 7)
    assert cat.metadata["testpoints"] == ["Style"]
    assert (dog.text, dog.dataset_id, dog.metadata) == (
        "a dog",
        1,
        {"key": 1, "dataset": "captions"},
    )


def test_malformed_rows_of_an_evaluation_set_are_left_out_and_told(tmp_path):
    path = evaluation(tmp_path)
    rows = (tmp_path / "bench.csv").read_text()
    (tmp_path / "bench.csv").write_text(f"{rows}8,a dog,no JSON\n")
    named = {"heldout_source": "deepgen_eval", "heldout_path": str(path)}
    data = {"source": "deepgen", "path": str(training(tmp_path, 40)), **named}
    with pytest.raises(DataError, match=r"bench\.csv: line 3 \(index 8\)"):
        prepare(DataConfig.model_validate(data), tmp_path / "out")
    data["malformed_rows"] = "leave_out"
    summary = prepare(DataConfig.model_validate(data), tmp_path / "out")
    assert summary["malformed"]["left_out"] == 1
    assert summary["heldout"]["prompts"] == 2
    rewards = {"ocr": {}, "yes_no": {"judge": "j"}}
    assert "data.malformed_rows" not in dict(without_effect(run_config(data=data, rewards=rewards)))


def test_what_an_evaluation_set_asks_for_otherwise_is_told(tmp_path):
    datasets = read_datasets(evaluation(tmp_path))
    measured = EvaluationConfig(guidance_scale=4.0, num_inference_steps=20)
    assert dict(differences(datasets, measured)) == {
        "images_per_prompt": "1, and data set bench asks for 4",
        "num_inference_steps": "20, and data set bench asks for 50",
        "suite": "ocr, and data set bench asks for unigenbench",
    }


def test_the_plan_warns_of_an_evaluation_that_is_not_the_files(tmp_path):
    data = {"heldout_source": "deepgen_eval", "heldout_path": str(evaluation(tmp_path))}
    config = run_config(
        data=data, rewards={"ocr": {}}, evaluation={"suite": "yes_no", "yes_no": {"judge": "j"}}
    )
    found = prompts_here(config)
    assert found.heldout == 2
    warnings = list(prompt_warnings(config, found))
    assert "evaluation.guidance_scale: 1.0, and data set bench asks for 4.0" in warnings


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("duplicates: 4", "duplicates: 0", r"line 6: datasets\[0\]\.duplicates 0: a whole number"),
        ("duplicates: 4", "duplicates: 1.5", "line 6: .*1.5: a whole number"),
        ("duplicates: 4", "duplicates: .inf", "line 6: .*a (whole )?number"),
        ("duplicates: 4", "duplicate: 4", "line 6: .*'duplicate'; did you mean duplicates"),
        ("duplicates: 4", "sample_weight: 4", "line 6: .*belongs to a training YAML"),
        ("bench.csv", "none.csv", r"line 3: datasets\[0\]\.path: no such file .*none\.csv"),
    ],
)
def test_mistakes_in_an_evaluation_yaml_are_named(tmp_path, old, new, message):
    path = evaluation(tmp_path, text=EVALUATION.replace(old, new, 1))
    with pytest.raises(DataError, match=message):
        read_datasets(path)


def test_the_real_evaluation_yaml(tmp_path):
    if not REAL.is_dir():
        pytest.skip("needs ../shared/data")
    shutil.copyfile(REAL / "deepgen" / "eval.yaml", tmp_path / "eval.yaml")
    (tmp_path / "unigenbench").mkdir()
    name = "unigenbench/test_prompts_en.csv"
    shutil.copyfile(REAL / name, tmp_path / name)
    prompts = read_prompts_file("deepgen_eval", tmp_path / "eval.yaml")
    assert len(prompts) == 600
    assert {one.metadata["dataset"] for one in prompts} == {"unigenbench_en"}


def test_python_names_pictures_and_no_prompts(tmp_path):
    path = tmp_path / "t2i.py"
    path.write_text("train_dataloader = dict()\n")
    with pytest.raises(
        DataError, match=r"t2i\.py: Python is not run.* data\.sft\.files\.NAME\.path"
    ):
        read_prompts_file("deepgen", path)


# Prompt files ------------------------------------------------------------------------------------


def test_a_csv_of_prompts(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text('index,prompt,hint\n3,"a cat, asleep",x\n4,"two\nlines",y\n')
    found = read_prompts_file("plain", path)
    assert [one.text for one in found] == ["a cat, asleep", "two\nlines"]
    assert found[0].metadata == {"index": "3", "hint": "x"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("index,text\n1,a\n", "line 1: a column prompt or caption expected, found index, text"),
        ("prompt\n", "no rows below the header"),
        ("prompt,index\na\n", "line 2: 1 cells, but 2 columns"),
        ("prompt,index\n  ,1\n", "line 2: no text under the key"),
        ("prompt,prompt\na,b\n", "line 1: every column needs a name of its own"),
        ('prompt\n"a', "not CSV"),
    ],
)
def test_mistakes_in_a_csv_are_named(tmp_path, text, message):
    path = tmp_path / "p.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_prompts_file("plain", path)
