"""Completions that servers draw: what is asked, what is refused, and what is brought again.

A real vLLM is asked in tests/vllm; here its requests are answered without a model.
"""

from __future__ import annotations

import base64
import io
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image, ImageChops
from safetensors.torch import load_file

from atelier.algorithms.registry import make_algorithm
from atelier.config.schema import RunConfig
from atelier.data.prompts import Prompt
from atelier.data.scenes import Scene, SceneObject, to_dict
from atelier.errors import AtelierError, ConfigError, Stopped
from atelier.policies.qwen.chat import ChatPrompt
from atelier.policies.qwen.generation import Writing
from atelier.policies.qwen.policy import QwenPolicy
from atelier.policies.qwen.served import answers, patience
from atelier.policies.qwen.served.answers import Written, unexpanded
from atelier.policies.qwen.served.files import encoder_files
from atelier.policies.qwen.served.sampler import ServedSampler
from atelier.policies.qwen.served.server import Passing, Server
from atelier.policies.registry import served_sampler
from atelier.rewards.service.protocol import MANAGED_TOKEN_VARIABLE
from atelier.rewards.service_file import write_services
from atelier.tracking.run_directory import RunDirectory
from atelier.training.distributed import World
from atelier.training.updates import Learner
from atelier.training.weight_sync import WeightSync, nothing_to_bring, weight_sync
from tests.support.random_qwen import END, IMAGE, SIDE, Kind, build_pipeline, save_pipeline
from tests.support.sampler_endpoint import StandIn, sampler_endpoint

TOKENS = 4
PROMPTS = [Prompt(number, 0, f"a {colour} circle") for number, colour in enumerate(("red", "blue"))]
ALONE = World(0, 1, torch.device("cpu"))
URL_OF_NOBODY = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_FIRST_PAUSE", 0.01)


def config_of(kind: Kind = "text", trainable: str = "lora", **sampler: object) -> RunConfig:
    return RunConfig.model_validate(
        {
            "policy": {
                "family": "qwen",
                "resolution": SIDE,
                "trainable": trainable,
                "lora": {"rank": 4, "alpha": 8},
            },
            "rollout": {
                "kind": "edit" if kind == "edit" else "draw",
                "completion": {"max_tokens": TOKENS, "backend": "vllm"},
                "old_log_prob": "recompute",
                "environment": {"condition_side": 64, "reference_side": 64},
                "sampler": {"timeout": 5, "deadline": 5, **sampler},
            },
            "algorithm": {"kl": "k3"},
        }
    )


def policy_of(config: RunConfig) -> QwenPolicy:
    own = build_pipeline("edit" if config.rollout.kind == "edit" else "text")
    return QwenPolicy(own.text_encoder, own, config, torch.device("cpu"))


class Drawing:
    """A policy, and the stand-in that draws for it."""

    def __init__(self, config: RunConfig, endpoint: StandIn, folder: Path) -> None:
        self.endpoint, self.folder, self.config = endpoint, folder, config
        self.policy = policy_of(config)
        self.sampler = self.another()
        self.expected = self.sampler.expected(self.policy.module)
        endpoint.says = self.expected.tolist()
        endpoint.writes = [65, 66, 67, END]

    def another(self) -> ServedSampler:
        """Of another rank."""
        timeout = self.config.rollout.sampler.timeout
        server = Server(self.endpoint.url, "sesam", timeout)
        return self.policy.draw_at([server], 0, self.folder)

    def brings(self, expected: torch.Tensor | None = None) -> dict[str, float]:
        known = self.expected if expected is None else expected
        return self.sampler.bring(dict(self.policy.trainable()), known)[1]

    def writes(self) -> list[list[int]]:
        return self.sampler.write(self.policy.tools.read(PROMPTS), [5, 2**64 - 1]).own()


@pytest.fixture(params=["lora", "full"])
def drawing(request, tmp_path: Path) -> Iterator[Drawing]:
    with sampler_endpoint() as endpoint:
        found = Drawing(config_of(trainable=request.param), endpoint, tmp_path)
        yield found
        found.sampler.close()


# What is brought --------------------------------------------------------------------------------


def test_each_bringing_has_a_version_of_its_own(drawing: Drawing) -> None:
    assert drawing.brings() == {"sampler/probe_gap_mean": 0.0, "sampler/probe_gap_max": 0.0}
    first = drawing.sampler._version
    drawing.brings()
    second = drawing.sampler._version
    assert first.name != second.name
    assert [one.name for one in drawing.folder.iterdir() if one.is_dir()] == [second.name]
    endpoint = drawing.endpoint
    if drawing.policy._config.policy.trainable == "lora":
        assert endpoint.adapters == {second.name: str(second.folder)}
    else:
        assert endpoint.version == second.name
        caches = ["/reset_encoder_cache", "/reset_mm_cache", "/reset_prefix_cache"]
        steps = ["/collective_rpc", *caches, "/update_weight_version"]
        assert endpoint.paths()[:6] == [*steps, "/inference/v1/generate"]


def test_what_is_written_is_what_a_server_reads(drawing: Drawing) -> None:
    drawing.brings()
    folder = drawing.sampler._version.folder
    trained = {
        name.removeprefix("encoder."): value for name, value in drawing.policy.trainable().items()
    }
    if drawing.policy._config.policy.trainable == "full":
        found = load_file(folder / "model.safetensors")
        assert found.keys() == trained.keys()
        assert "lm_head.weight" in found
        assert not [name for name in found if "visual" in name]
        return
    settings = json.loads((folder / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (4, 8)
    found = load_file(folder / "adapter_model.safetensors")
    layer = "model.language_model.layers.0.self_attn.q_proj"
    for side in "AB":
        ours = trained[f"{layer}.lora_{side}.default.weight"]
        assert torch.equal(found[f"base_model.model.{layer}.lora_{side}.weight"], ours)
    assert len(found) == len(trained)


def test_16_bits_are_brought_as_the_server_computes(tmp_path: Path) -> None:
    config = config_of(trainable="full")
    half = config.policy.model_copy(update={"dtype": "bfloat16"})
    with sampler_endpoint() as endpoint:
        drawing = Drawing(config.model_copy(update={"policy": half}), endpoint, tmp_path)
        drawing.brings()
        found = load_file(drawing.sampler._version.folder / "model.safetensors")
        drawing.sampler.close()
    assert {one.dtype for one in found.values()} == {torch.bfloat16}


@pytest.mark.parametrize("off", [0.2, float("nan")])
def test_other_weights_stop_the_run(drawing: Drawing, off: float) -> None:
    with pytest.raises(Stopped, match=r"differ from the trainer's .*rollout\.sampler\.tolerance"):
        drawing.brings(drawing.expected + off)
    drawing.brings(drawing.expected + 0.05)


# What is asked ----------------------------------------------------------------------------------


def test_a_sample_is_asked_for_by_its_key(drawing: Drawing) -> None:
    drawing.brings()
    assert drawing.writes() == [[65, 66, 67, END]] * 2
    (_, first), (_, second) = drawing.endpoint.asked[-2:]
    asked = [body["sampling_params"] for body in (first, second)]
    assert sorted(one["seed"] for one in asked) == [2, 2**63 - 1]
    never = {int(token) for token in asked[0]["logit_bias"]}
    assert never == set(drawing.policy.tools.writing.never) >= {IMAGE}
    assert END not in never
    assert asked[0]["stop_token_ids"] == [END]
    assert asked[0]["max_tokens"] == TOKENS
    assert first["token_ids"] in [list(one.chat.ids) for one in drawing.policy.tools.read(PROMPTS)]


def test_completions_are_padded_and_say_how_likely_they_were(drawing: Drawing) -> None:
    drawing.brings()
    drawing.endpoint.writes = [65, END]
    found = drawing.sampler.write(drawing.policy.tools.read(PROMPTS[:1]), [1])
    assert found.log_probs.tolist() == [[-1.5, -1.5]]
    assert found.ended.tolist() == [True]
    drawing.endpoint.writes = [65, 66, 67, 68]
    found = drawing.sampler.write(drawing.policy.tools.read(PROMPTS), [1, 2])
    assert found.ended.tolist() == [False] * 2


def test_an_image_goes_beside_its_place(tmp_path: Path) -> None:
    """One placeholder for it is sent, and as many come back as the trainer reads."""
    assert unexpanded([7, IMAGE, IMAGE, IMAGE, 8, 8], IMAGE) == [7, IMAGE, 8, 8]
    source = {"source_scene": to_dict(Scene((SceneObject("square", "red", (1, 1)),)))}
    prompts = [replace(one, metadata=source) for one in PROMPTS]
    with sampler_endpoint() as endpoint:
        drawing = Drawing(config_of("edit"), endpoint, tmp_path)
        drawing.brings()
        read = drawing.policy.tools.read(prompts)
        endpoint.placeholders = (IMAGE, read[0].chat.image)
        assert read[0].chat.image > 1
        drawing.sampler.write(read, [1, 2])
        _, body = endpoint.asked[-1]
        assert body["token_ids"].count(IMAGE) == 1
        (part,) = body["content_parts"]
        png = io.BytesIO(base64.b64decode(part["url"].removeprefix("data:image/png;base64,")))
        seen = drawing.policy.tools.chat.seen(read[0].source)
        assert ImageChops.difference(Image.open(png), seen).getbbox() is None
        endpoint.placeholders = (IMAGE, read[0].chat.image + 1)
        with pytest.raises(ConfigError, match="sees images in another size"):
            drawing.sampler.write(read, [1, 2])
        drawing.sampler.close()


# What is refused --------------------------------------------------------------------------------

PROMPT = ChatPrompt((1, 2, 3), drop=0, image=0, tail=0)


def writing() -> Writing:
    return replace(policy_of(config_of()).tools.writing, limit=4, end=9, never=(5,))


def answer_of(tokens: list[int], read: list[int] | None = None, reason: str = "length") -> dict:
    content = [{"logprob": -1.0} for _ in tokens]
    choice = {"token_ids": tokens, "finish_reason": reason, "logprobs": {"content": content}}
    return {"prompt_token_ids": [1, 2, 3] if read is None else read, "choices": [choice]}


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (answer_of([1, 2, 9], read=[1, 2]), ConfigError, "as 2 tokens and the trainer as 3"),
        (answer_of([1, 2, 9], read=[1, 7, 3]), ConfigError, "differ from place 1 on"),
        (answer_of([1, 5, 9]), ConfigError, r"drew tokens \[5\] that it was told never to draw"),
        (answer_of([1, 2]), ConfigError, r"max_model_len: .* at 2 tokens"),
        (answer_of([1, 2], reason="abort"), Passing, "2 tokens that is not whole"),
        (answer_of([9, 1, 2, 9]), Passing, "not whole"),
        ({"choices": []}, Passing, "no completion"),
        ({}, Passing, "no completion"),
    ],
)
def test_an_answer_is_refused(answer: dict, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        answers.written(answer, PROMPT, writing())


@pytest.mark.parametrize("tokens", [[1, 2, 9], [1, 2, 3, 4], [9]])
def test_an_answer_is_read(tokens: list[int]) -> None:
    found = answers.written(answer_of(tokens), PROMPT, writing())
    assert found == Written(tokens, [-1.0] * len(tokens))


def test_a_request_that_is_refused_is_a_bad_configuration(drawing: Drawing) -> None:
    drawing.brings()
    drawing.endpoint.statuses = [400]
    with pytest.raises(ConfigError, match=r"rollout\.sampler: .* says 400: .*not now"):
        drawing.writes()


# What is away -----------------------------------------------------------------------------------


def test_a_server_that_lost_weights_is_brought_them_before_it_is_asked_again(
    drawing: Drawing,
) -> None:
    drawing.brings()
    drawing.endpoint.restart()
    before = len(drawing.endpoint.paths())
    assert drawing.writes() == [[65, 66, 67, END]] * 2
    paths = drawing.endpoint.paths()[before:]
    brought = {"/v1/load_lora_adapter", "/update_weight_version"} & set(paths)
    assert len(brought) == 1
    after = paths[paths.index(*brought) + 1 :]
    assert after == ["/inference/v1/generate"] * 3  # the probe, and both prompts


@pytest.mark.parametrize("status", [500, 503, 429])
def test_one_that_answers_later_is_asked_later(drawing: Drawing, status: int) -> None:
    drawing.endpoint.statuses = [status] * 3
    drawing.brings()
    drawing.endpoint.statuses = [status] * 3
    assert drawing.writes() == [[65, 66, 67, END]] * 2


def test_one_that_never_answers_stops_the_run(tmp_path: Path) -> None:
    policy = policy_of(config_of(deadline=0.5, timeout=0.4))
    sampler = policy.draw_at([Server(URL_OF_NOBODY, None, 0.4)], 0, tmp_path)
    with pytest.raises(Stopped, match=r"nothing was drawn for 0\.5 s .*resume the run"):
        sampler.bring(dict(policy.trainable()), sampler.expected(policy.module))
    sampler.close()


def test_each_rank_asks_a_server_of_its_own_and_all_are_brought_the_weights(tmp_path: Path) -> None:
    config = config_of()
    policy = policy_of(config)
    with sampler_endpoint() as one, sampler_endpoint() as other:
        urls = [one.url, other.url]
        samplers = [
            served_sampler(policy, config.rollout.sampler, urls, None, rank, tmp_path)
            for rank in range(3)
        ]
        expected = samplers[0].expected(policy.module)
        for endpoint in (one, other):
            endpoint.says, endpoint.writes = expected.tolist(), [65, END]
        version, _ = samplers[0].bring(dict(policy.trainable()), expected)
        assert list(one.adapters) == list(other.adapters) == [version.name]
        for sampler in samplers:
            sampler.follow(version)
            sampler.write(policy.tools.read(PROMPTS[:1]), [1])
            sampler.close()
    generated = [len(found.paths()) - 2 for found in (one, other)]  # without bringing and probe
    assert generated == [2, 1]


def test_ranks_that_share_a_server_bring_weights_once(drawing: Drawing) -> None:
    other = drawing.another()
    version, _ = drawing.sampler.bring(dict(drawing.policy.trainable()), drawing.expected)
    other.follow(version)
    drawing.endpoint.restart()
    drawing.endpoint.asked.clear()
    read, found = drawing.policy.tools.read(PROMPTS), []
    ranks = [
        threading.Thread(target=lambda one=one: found.append(one.write(read, [1, 2])))
        for one in (drawing.sampler, other)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert len(found) == 2
    brought = ("/v1/load_lora_adapter", "/collective_rpc")
    assert len([one for one in drawing.endpoint.paths() if one in brought]) == 1
    other.close()


# In the trainer ---------------------------------------------------------------------------------


class Counted:
    """A sampler that notes what it is brought."""

    def __init__(self, problem: AtelierError | None = None) -> None:
        self.brought, self.follows, self._problem = [], [], problem

    def expected(self, module) -> str:
        return "probe"

    def bring(self, weights, expected):
        self.brought.append((weights, expected))
        if self._problem:
            raise self._problem
        return "version", {"sampler/probe_gap_mean": 0.0}

    def follow(self, version) -> None:
        self.follows.append(version)


def sync_of(sampler: Counted, world: World = ALONE) -> WeightSync:
    engine = SimpleNamespace(weights=lambda wanted: "weights" if wanted else None)
    return WeightSync(sampler, SimpleNamespace(module=None), engine, world)


def test_weights_are_brought_when_they_have_changed() -> None:
    sampler = Counted()
    sync = sync_of(sampler)
    assert sync(0) == {"sampler/probe_gap_mean": 0.0}
    assert sync(0) == {}
    sync(1)
    assert sampler.brought == [("weights", "probe")] * 2
    assert sampler.follows == ["version"] * 2


def test_ranks_learn_how_it_went_from_the_one_that_asked() -> None:
    class Second(World):
        is_main = False

        def gather(self, value):
            assert value is None
            return [told, value]

    follower = Counted()
    told: object = ("theirs", {})
    sync_of(follower, Second(1, 2, torch.device("cpu")))(0)
    assert (follower.brought, follower.follows) == ([], ["theirs"])
    told = Stopped("the server is gone")
    with pytest.raises(Stopped, match="the server is gone"):
        sync_of(follower, Second(1, 2, torch.device("cpu")))(0)
    with pytest.raises(Stopped, match="mine"):
        sync_of(Counted(Stopped("mine")))(0)


def test_a_trainer_without_its_servers_is_refused(tmp_path: Path, monkeypatch) -> None:
    run, config = RunDirectory(tmp_path), config_of()
    monkeypatch.setenv(MANAGED_TOKEN_VARIABLE, "sesam")
    refused = pytest.raises(
        ConfigError, match=r"rollout\.sampler\.placement: .*atelier stage train"
    )
    with refused, weight_sync(config, run, policy_of(config), None, ALONE):
        pass
    own = config.model_copy(update={"rollout": RunConfig().rollout})
    with weight_sync(own, run, None, None, ALONE) as sync:
        assert sync is nothing_to_bring


def test_weights_of_another_life_are_gone(tmp_path: Path, monkeypatch) -> None:
    run, config = RunDirectory(tmp_path), config_of()
    left = run.sampler / "weights" / "policy-000007-dead"
    left.mkdir(parents=True)
    monkeypatch.setenv(MANAGED_TOKEN_VARIABLE, "sesam")
    write_services(run.train, {"rollout.sampler": [{"url": URL_OF_NOBODY}]})
    with weight_sync(config, run, policy_of(config), None, ALONE):
        assert list((run.sampler / "weights").iterdir()) == []
    assert list(run.sampler.iterdir()) == []


@pytest.mark.parametrize("gap", [0.11, float("nan")])
def test_completions_of_other_weights_are_not_learned_from(gap: float, monkeypatch) -> None:
    config = config_of()
    session = SimpleNamespace(updates=0, samples_with_trained=True)
    learner = Learner(config, None, make_algorithm(config), None, session, None, ALONE)
    metrics = {"ratio/rollout_gap_mean": gap}
    monkeypatch.setattr(learner, "_recompute_old_log_probs", lambda rollouts: metrics)
    with pytest.raises(Stopped, match=r"step 3: the completions that servers .*tolerance=0\.1"):
        learner.learn(SimpleNamespace(step=3, updates_before=0, rollouts=[]))
    learner._sampler_gate(3, {"ratio/rollout_gap_mean": 0.09})


# Files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "reader"), [("text", "tokenizer"), ("edit", "processor")])
def test_a_server_sees_one_folder_of_a_pipelines_parts(
    tmp_path: Path, kind: Kind, reader: str
) -> None:
    pipeline = save_pipeline(tmp_path / "pipeline", kind)
    for _ in range(2):
        folder = encoder_files(pipeline, tmp_path / "model")
    names = {one.name for one in folder.iterdir()}
    parts = (pipeline / "text_encoder", pipeline / reader)
    assert names == {file for part in parts for file in os.listdir(part)}
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen2_5_vl"
