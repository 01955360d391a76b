"""Readers: what they make of well-formed files, and the place they name in malformed ones."""

import json

import pandas
import pytest
from PIL import Image

from atelier.config.paths import repository_root
from atelier.data.ground_truth import ground_truth_image, source_image
from atelier.data.prompts import write_prompts
from atelier.data.readers import READERS, read_prompts_file
from atelier.data.readers.deepgen import read_mixture
from atelier.errors import DataError
from atelier.mmmg.benchmark import DISCIPLINES, TIERS

CLAUSE = {"class": "dog", "count": 1}
GENEVAL = {"tag": "single_object", "include": [CLAUSE], "prompt": "a photo of a dog"}
SFT = {"promptid": "p1", "prompt": "a red dog", "data": []}
JUDGED = {"id": 1, "img_path": "dog.png", "reason": "it is red", "prob": 0.9, "state": 4}
EDIT = {"image1": "dog.png", "text": "make it red"}
FOCUS = {"prompt1": "a red dog", "prompt2": "a blue dog", "image1": "dog.png", "image2": None}
PAIR = {"category": "Color difference", "caption1": "a red dog", "caption2": "a blue dog"}
SUB_DIMS = {"Testpoints": ["Style"], "Testpoint Description": ["ink painting"]}
MIXTURE = """\
sampling_mode: weight_only
datasets:
  - name: text
    path: text.txt
    sample_weight: 3.0
    rewards:
      - ocr: 0.7
      - clip_sim: 0.3
  - name: general
    path: general.jsonl
    rewards:
      - clip_sim: 1
"""


def _file(folder, content, name="prompts.txt"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def _csv(sub_dims=SUB_DIMS, header="index,prompt_en,sub_dims_en", index="0", text="a dog"):
    cell = sub_dims if isinstance(sub_dims, str) else json.dumps(sub_dims)
    quoted = cell.replace('"', '""')
    return f'{header}\n{index},"{text}","{quoted}"\n'


def _deepgen(folder, mixture=MIXTURE):
    _file(folder, 'a sign "ONE"\n\na sign "TWO" and "THREE"\n', "text.txt")
    _file(folder, '{"prompt": "a dog", "source": "x"}\n{"caption": "a cat"}\n', "general.jsonl")
    return _file(folder, mixture, "train.yaml")


def test_ocr_text(tmp_path):
    text = '\ufeffA sign "Open 24h" at dusk\r\n\n  "Zwölf" and "more"\x0b left  \n'
    prompts = read_prompts_file("ocr_text", _file(tmp_path, text))
    assert [one.metadata["target"] for one in prompts] == ["Open 24h", "Zwölf"]
    assert [one.prompt_id for one in prompts] == [0, 1]
    assert prompts[0].text == 'A sign "Open 24h" at dusk'


def test_the_example_signs_have_targets_and_hold_none_out_that_is_trained_on():
    folder = repository_root() / "examples" / "signs"
    train, test = (
        {one.metadata["target"] for one in read_prompts_file("ocr_text", folder / name)}
        for name in ("train.txt", "test.txt")
    )
    assert (len(train), len(test)) == (1024, 256)
    assert not train & test


def test_plain(tmp_path):
    text = 'a dog\r\n\n a cat "sat" \n'
    prompts = read_prompts_file("plain", _file(tmp_path, text))
    assert [one.text for one in prompts] == ["a dog", 'a cat "sat"']
    assert [one.metadata for one in prompts] == [{}, {}]


def test_geneval(tmp_path):
    other = {
        "tag": "position",
        "include": [CLAUSE, {"class": "cat", "count": 2, "position": ["left of", 0]}],
        "exclude": [{"class": "dog", "count": 3}],
        "prompt": "two cats left of a dog",
    }
    path = _file(tmp_path, f"{json.dumps(GENEVAL)}\n\n{json.dumps(other)}\n")
    first, second = read_prompts_file("geneval", path)
    assert first.text == "a photo of a dog"
    assert first.metadata == {"tag": "single_object", "include": [CLAUSE], "exclude": []}
    assert second.metadata["exclude"] == [{"class": "dog", "count": 3}]


@pytest.mark.parametrize("suffix", ["_en", ""])
def test_unigenbench_both_column_namings(tmp_path, suffix):
    path = _file(
        tmp_path, _csv(header=f"index,prompt{suffix},sub_dims{suffix}", index="7", text="a\nb")
    )
    (prompt,) = read_prompts_file("unigenbench", path)
    assert (prompt.prompt_id, prompt.text) == (7, "a\nb")
    assert prompt.metadata["language"] == "en"
    assert prompt.metadata["testpoints"] == ["Style"]
    assert prompt.metadata["descriptions"] == ["ink painting"]


def test_unigenbench_chinese_and_without_index(tmp_path):
    sub_dims = json.dumps({"考点": ["风格"], "考点对应描述": ["水墨画"]}).replace('"', '""')
    path = _file(tmp_path, f'prompt_zh,sub_dims_zh\n一只狗,"{sub_dims}"\n')
    (prompt,) = read_prompts_file("unigenbench", path)
    assert prompt.metadata["language"] == "zh"
    assert prompt.metadata["testpoints"] == ["风格"]


def test_paircomp(tmp_path):
    prompts = read_prompts_file("paircomp", _file(tmp_path, json.dumps([PAIR, PAIR])))
    assert [one.prompt_id for one in prompts] == [0, 1, 2, 3]
    assert prompts[1].text == "a blue dog"
    assert prompts[1].metadata == {
        **{"pair": 0, "category": "Color difference", "caption": 2},
        "partner": "a red dog",
    }


def _picture(folder, name="dog.png", size=(8, 6)):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, "red").save(folder / name)
    return str(folder / name)


def test_focusdiff(tmp_path):
    dog, cat = _picture(tmp_path), _picture(tmp_path, "pictures/cat.jpg")
    pairs = [FOCUS, {"prompt1": "one", "prompt2": "two"}, {**FOCUS, "image2": cat}]
    prompts = read_prompts_file("focusdiff", _file(tmp_path, json.dumps(pairs)))
    assert [one.prompt_id for one in prompts] == list(range(6))
    assert [one.metadata.get("image") for one in prompts] == [dog, None, None, None, dog, cat]
    assert prompts[1].text == "a blue dog"
    assert prompts[1].metadata == {"pair": 0, "caption": 2, "partner": "a red dog"}
    assert ground_truth_image(prompts[4]).size == (8, 6)
    assert ground_truth_image(prompts[1]) is None


def test_janus_edit(tmp_path):
    dog = _picture(tmp_path)
    path = _file(tmp_path, f"{json.dumps(EDIT)}\n\n{json.dumps(EDIT)}\n")
    prompts = read_prompts_file("janus_edit", path)
    assert [one.prompt_id for one in prompts] == [0, 1]
    assert prompts[0].text == "make it red"
    assert prompts[0].metadata == {"source_image": dog}
    assert source_image(prompts[0]).getpixel((0, 0)) == (255, 0, 0)


def test_janus_sft_edit(tmp_path):
    dog, after = _picture(tmp_path), _picture(tmp_path, "after.png")
    row = {"sample_id": 7, "text": "make it red", "input": "dog.png", "output": "after.png"}
    (prompt,) = read_prompts_file("janus_sft_edit", _file(tmp_path, json.dumps(row)))
    assert prompt.metadata == {"sample_id": 7, "source_image": dog, "image": after}


def test_janus_sft(tmp_path):
    dog = _picture(tmp_path)
    rows = [{**SFT, "data": [JUDGED, {**JUDGED, "id": "b", "reason": "", "state": 0}]}, SFT]
    path = _file(tmp_path, "\n".join(json.dumps(one) for one in rows))
    first, second = read_prompts_file("janus_sft", path)
    assert first.text == "a red dog"
    assert first.metadata["promptid"] == "p1"
    assert first.metadata["judged"][1] == {
        **{"id": "b", "image": dog, "reason": "", "prob": 0.9},
        "state": 0,
    }
    assert second.metadata["judged"] == []


def test_deepgen(tmp_path):
    path = _deepgen(tmp_path)
    mixture = read_mixture(path, known_rewards=("ocr", "clip_sim"))
    assert mixture.sampling_mode == "weight_only"
    assert [dataset.sample_weight for dataset in mixture.datasets] == [3.0, 1.0]
    assert list(mixture.datasets[0].rewards.items()) == [("clip_sim", 0.3), ("ocr", 0.7)]
    prompts = read_prompts_file("deepgen", path)
    assert [(one.dataset_id, one.prompt_id) for one in prompts] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert prompts[1].metadata["target"] == "TWO"
    assert prompts[2].metadata == {
        **{"source": "x", "dataset": "general"},
        "rewards": {"clip_sim": 1.0},
    }
    write_prompts(tmp_path / "train.parquet", prompts)


def test_deepgen_reads_parquet_and_quoted_jsonl(tmp_path):
    _deepgen(tmp_path)
    pandas.DataFrame({"caption": ["a dog", "a cat"]}).to_parquet(tmp_path / "general.parquet")
    _file(tmp_path, '{"prompt": "a sign \\"ONE\\""}\n', "text.jsonl")
    text = MIXTURE.replace("general.jsonl", "general.parquet").replace("text.txt", "text.jsonl")
    prompts = read_prompts_file("deepgen", _file(tmp_path, text, "other.yaml"))
    assert [one.text for one in prompts] == ['a sign "ONE"', "a dog", "a cat"]
    assert prompts[0].metadata["target"] == "ONE"


MALFORMED = [
    ("ocr_text", "a sign\n", r'line 1: no text in straight double quotes \("\): a sign'),
    ("ocr_text", 'a "b"\n\na “sign”\n', "line 3: .*curly quotes do not count"),
    ("ocr_text", 'a "b" and "c\n', r"line 1: unbalanced double quotes \(3\)"),
    ("ocr_text", 'a "b"\na " "\n', "line 2: the quoted target is empty"),
    ("geneval", "{\n", "line 1: not JSON: .* column"),
    ("geneval", "[]\n", "line 1: expected a JSON object, found a list"),
    ("geneval", {**GENEVAL, "prompt": " "}, "line 1: key 'prompt'"),
    ("geneval", {**GENEVAL, "tag": "color"}, "'tag': 'color' is unknown; did you mean colors"),
    ("geneval", {**GENEVAL, "include": []}, "key 'include': a non-empty list"),
    ("geneval", {**GENEVAL, "include": ["dog"]}, r"include\[0\]: expected an object"),
    ("geneval", {**GENEVAL, "exclude": {}}, "key 'exclude': a list"),
    ("geneval", {**GENEVAL, "include": [{**CLAUSE, "count": 0}]}, r"include\[0\]: key 'count'"),
    ("geneval", {**GENEVAL, "include": [{**CLAUSE, "count": True}]}, "key 'count'"),
    ("geneval", {**GENEVAL, "include": [{"count": 1}]}, "key 'class'"),
    ("geneval", {**GENEVAL, "include": [{**CLAUSE, "color": 3}]}, "key 'color'"),
    ("geneval", {**GENEVAL, "include": [{**CLAUSE, "colour": "red"}]}, "did you mean color?"),
    ("geneval", {**GENEVAL, "include": [{**CLAUSE, "position": ["above", 0]}]}, "key 'position'"),
    (
        "geneval",
        {**GENEVAL, "include": [{**CLAUSE, "position": ["above", 1]}, CLAUSE]},
        r"include\[0\]: key 'position': .*an earlier include clause",
    ),
    ("geneval", {**GENEVAL, "include": [{**CLAUSE, "position": ["over", 1]}]}, "key 'position'"),
    ("unigenbench", "a,b\n1,2\n", "line 1: columns prompt_en, sub_dims_en or .* found a, b"),
    ("unigenbench", "index,prompt_en,sub_dims_en\n", "no rows below the header"),
    ("unigenbench", _csv("{oops"), r"line 2 \(index 0\): column sub_dims_en: not JSON"),
    ("unigenbench", _csv({"Points": []}), "a JSON object with 'Testpoints' or"),
    ("unigenbench", _csv({"Testpoints": ["a"]}), "must be lists of texts"),
    (
        "unigenbench",
        _csv({"Testpoints": ["a", "b"], "Testpoint Description": ["c"]}),
        "2 test points, but 1 descriptions",
    ),
    ("unigenbench", _csv(text=" "), "column prompt_en: the prompt is empty"),
    ("unigenbench", _csv(index="x"), "column index: a whole number, not 'x'"),
    ("unigenbench", _csv() + _csv().split("\n")[1], "line 3 .*column index: stands twice"),
    ("unigenbench", _csv() + "1,b\n", "line 3: 2 cells, but 3 columns"),
    ("unigenbench", _csv() + '1,"b', "line 3: not CSV"),
    ("paircomp", "[\n{\n]", "line 3: not JSON"),
    ("paircomp", "{}", "a non-empty JSON list"),
    ("paircomp", "[]", "a non-empty JSON list"),
    ("paircomp", [PAIR, "x"], "pair 1: an object with category"),
    ("paircomp", [PAIR, {**PAIR, "caption2": ""}], "pair 1: key 'caption2'"),
    ("paircomp", [{**PAIR, "caption3": "x"}], "pair 0: unknown key 'caption3'; did you mean cap"),
    ("paircomp", [{**PAIR, "caption2": "a red dog"}], "are the same"),
    ("focusdiff", "{}", "a non-empty JSON list of pairs"),
    ("focusdiff", [{**FOCUS, "image1": None}, 3], "pair 1: an object with prompt1, prompt2"),
    (
        "focusdiff",
        [{**FOCUS, "image_1": "x"}],
        "pair 0: unknown key 'image_1'; did you mean image1",
    ),
    ("focusdiff", [FOCUS], "pair 0: key 'image1': no such file .*dog.png"),
    ("focusdiff", [{**FOCUS, "image1": "prompts.txt"}], "prompts.txt is not an image"),
    ("focusdiff", [{**FOCUS, "image1": 3}], "pair 0: key 'image1': a non-empty text, not 3"),
    ("focusdiff", [{**FOCUS, "prompt2": "a red dog", "image1": None}], "are the same"),
    ("focusdiff", [{**FOCUS, "prompt1": None}], "key 'prompt1': a non-empty text, not None"),
    ("janus_edit", "{\n", "line 1: not JSON: .* column"),
    ("janus_edit", EDIT, "line 1: key 'image1': no such file .*dog.png"),
    ("janus_edit", {**EDIT, "image": "x"}, "line 1: unknown key 'image'; did you mean image1"),
    ("janus_edit", {"image1": "dog.png"}, "line 1: key 'text': a non-empty text"),
    ("janus_sft_edit", {"text": "x", "input": "a", "output": "b"}, "key 'sample_id': a number or"),
    ("janus_sft", {**SFT, "data": {}}, "line 1: key 'data': a list of judged pictures"),
    ("janus_sft", {**SFT, "data": [1]}, r"line 1: data\[0\]: an object with id, img_path"),
    ("janus_sft", {**SFT, "data": [{**JUDGED, "prob": 1.5}]}, r"data\[0\]: key 'prob': a number"),
    ("janus_sft", {**SFT, "data": [{**JUDGED, "state": True}]}, "key 'state': a whole number"),
    ("janus_sft", {**SFT, "data": [JUDGED]}, r"data\[0\]: key 'img_path': no such file"),
    ("janus_sft", {**SFT, "promptid": None}, "line 1: key 'promptid'"),
]


@pytest.mark.parametrize("format", ["janus_sft", "janus_sft_edit", "janus_edit", "geneval", "mmmg"])
@pytest.mark.parametrize("indent", [None, 1])
def test_a_list_in_the_place_of_lines_is_told_in_few_words(tmp_path, format, indent):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps([{"text": "x" * 5000}] * 20, indent=indent))
    with pytest.raises(DataError, match="a JSON list, and JSON lines are expected") as caught:
        read_prompts_file(format, path)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("format", ["janus_sft", "janus_sft_edit", "janus_edit", "focusdiff"])
def test_a_long_value_is_shown_shortened(tmp_path, format):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(["x" * 5000] if format == "focusdiff" else "x" * 5000))
    with pytest.raises(DataError, match=r"xxx\.\.\.$"):
        read_prompts_file(format, path)


def test_the_pages_name_what_files_of_mmmg_and_janus_may_hold():
    page = (repository_root() / "docs" / "mmmg.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in (*TIERS, *DISCIPLINES))
    data = (repository_root() / "docs" / "data.md").read_text(encoding="utf-8")
    assert all(f"{state}: {said}" in data for state, said in ((0, "no"), (1, "no"), (4, "yes")))


@pytest.mark.parametrize(("format", "content", "message"), MALFORMED)
def test_malformed_content_is_named(tmp_path, format, content, message):
    path = _file(tmp_path, content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(DataError, match=f"{path}: (.*\n)*.*{message}"):
        read_prompts_file(format, path)


def _read_known(path):
    read_mixture(path, known_rewards=("ocr", "clip_sim"))
    return read_prompts_file("deepgen", path)


DEEPGEN_MISTAKES = [
    ("sampling_mode: weight_only", "sampling_mode: weights_only", "line 1: .*mean weight_only"),
    ("sampling_mode: weight_only", "mode: weight_only", "line 1: the file: unknown key 'mode'"),
    ("    sample_weight: 3.0", "    weight: 3.0", "line 5: .*'weight'; did you mean sample_weight"),
    ("    sample_weight: 3.0", "    duplicates: 3", "line 5: .*belongs to an evaluation YAML"),
    ("weight: 3.0", "weight: 0", r"line 5: datasets\[0\].sample_weight 0.0: a number above 0"),
    ("weight: 3.0", "weight: .nan", "line 5: .*sample_weight"),
    ("weight: 3.0", "weight: [3]", "line 5: .*a number expected"),
    ("  - name: general\n    path", "  - path", r"line 9: datasets\[1\] has no name"),
    ("name: general", "name: text", r"line 9: datasets\[1\].name 'text' stands twice"),
    ("name: general", "name: Text", r"datasets: 'text' and 'Text' would be one metric"),
    ("general.jsonl", "missing.jsonl", r"line 10: datasets\[1\].path: no such file .*missing"),
    ("general.jsonl", "train.yaml", "a prompt file is one of .txt, .jsonl, .csv, .parquet"),
    ("      - clip_sim: 1\n", "", r"line 11: datasets\[1\].rewards: a non-empty list"),
    ("- clip_sim: 1\n", "- clip_sim: high\n", "line 12: .*clip_sim: a number expected"),
    ("- clip_sim: 1\n", "- clip_sim: -1\n", "line 12: .*0 or more"),
    ("- clip_sim: 1\n", "- clip_sim\n", "line 12: .*each entry is `- reward_name: weight`"),
    ("- clip_sim: 0.3\n", "- ocr: 0.3\n", r"line 8: datasets\[0\].rewards.ocr stands twice"),
    ("- clip_sim: 1\n", "- clipsim: 1\n", "line 12: .*reward 'clipsim'; did you mean rewards.clip"),
    ("datasets:\n", "datasets: [\n", "line .*not YAML"),
    ("datasets:\n", "datasets: {}\nx:\n", "line 2: datasets: a non-empty list expected"),
]


@pytest.mark.parametrize(("old", "new", "message"), DEEPGEN_MISTAKES)
def test_mistakes_in_a_deepgen_yaml_are_named(tmp_path, old, new, message):
    assert old in MIXTURE
    path = _deepgen(tmp_path, MIXTURE.replace(old, new, 1))
    with pytest.raises(DataError, match=message):
        _read_known(path)


def test_a_deepgen_dataset_rewarded_by_ocr_alone_needs_targets(tmp_path):
    path = _deepgen(tmp_path, MIXTURE.replace("      - clip_sim: 0.3\n", "", 1))
    _file(tmp_path, 'a "b"\nno quotes\n', "text.txt")
    with pytest.raises(DataError, match=r"text\.txt: line 2: no text in straight double quotes"):
        read_prompts_file("deepgen", path)


def test_bad_lines_are_reported_together_up_to_ten(tmp_path):
    path = _file(tmp_path, 'fine "x"\n' + "bad\n" * 12)
    with pytest.raises(DataError) as error:
        read_prompts_file("ocr_text", path)
    report = str(error.value).split("\n")
    assert report[0] == f"{path}: 12 problems"
    assert [line.split(":")[0].strip() for line in report[1:11]] == [
        f"line {number}" for number in range(2, 12)
    ]
    assert report[11:] == ["  and 2 more"]


@pytest.mark.parametrize("format", sorted(READERS))
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b" \n\n", "the file is empty"),
        (b"fine\n\xe9t\xe9\n", "line 2: not UTF-8 text"),
        ("a dog".encode("utf-16-le"), "NUL bytes"),
    ],
)
def test_no_reader_takes_an_unreadable_file(tmp_path, format, content, message):
    with pytest.raises(DataError, match=message):
        read_prompts_file(format, _file(tmp_path, content))


@pytest.mark.parametrize("format", sorted(READERS))
def test_no_reader_takes_a_folder_or_nothing(tmp_path, format):
    with pytest.raises(DataError, match="is a folder"):
        read_prompts_file(format, tmp_path)
    with pytest.raises(DataError, match="no such file"):
        read_prompts_file(format, tmp_path / "none.txt")


def test_an_unknown_format_is_refused_with_a_suggestion(tmp_path):
    with pytest.raises(DataError, match=r"'ocr' is unknown; did you mean ocr_text\?"):
        read_prompts_file("ocr", tmp_path)
