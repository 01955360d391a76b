"""Which GPUs ranks and managed servers get, and what cannot be placed."""

import re

import pytest

from atelier.config.placement import (
    Placements,
    gpus_wanted,
    managed_servers,
    place,
    placement_conflicts,
    placement_rows,
    servers_share,
)
from atelier.config.plan import plan
from atelier.config.resolve import resolve
from atelier.errors import ConfigError, PlanError
from atelier.processes.gpus import VISIBLE
from atelier.stages.servers.run_servers import RunServers
from atelier.tracking.run_directory import RunDirectory

JUDGE = "judges.scene.model=assets/tiny-judge"


def config(*overrides):
    return resolve("tiny/flow-grpo-fast", [*overrides])


def test_the_trainer_comes_first_and_servers_behind_it_in_order():
    found = config(
        "launch.processes=2",
        JUDGE,
        "judges.scene.server.gpus=2",
        "judges.scene.vllm.tensor_parallel=2",
        "rewards.ocr.placement=managed",
        "rewards.ocr.replicas=2",
        "rewards.ocr.server.gpus=1",
    )
    assert gpus_wanted(found) == 6
    assert place(found, list("abcdef")) == Placements(
        ("a", "b"),
        (),
        {"judges.scene-0": ("c", "d"), "rewards.ocr-0": ("e",), "rewards.ocr-1": ("f",)},
    )


PAINTING = ("policy.family=qwen", "launch.processes=4", "launch.device=cuda")


def test_what_paints_comes_behind_the_ranks_and_before_servers():
    judge = (JUDGE, "judges.scene.server.gpus=1")
    found = config(*PAINTING, "rollout.environment.gpus=2", *judge)
    assert gpus_wanted(found) == 7
    assert place(found, list("abcdefg")) == Placements(
        ("a", "b", "c", "d"), ("e", "f"), {"judges.scene-0": ("g",)}
    )
    rows = placement_rows(found)
    assert ("painting", "GPU 4, 5", "for 2 ranks each") in rows
    assert rows[0][:2] == ("trainer", "GPU 0, 1, 2, 3")


def test_the_trainer_sees_what_paints_behind_its_ranks_and_no_server(tmp_path, monkeypatch):
    found = config(*PAINTING, "rollout.environment.gpus=2", JUDGE, "judges.scene.server.gpus=1")
    servers = RunServers(RunDirectory(tmp_path), found)
    monkeypatch.setattr(servers, "_servers", {"judges.scene": []})
    monkeypatch.setattr(servers, "_placements", place(found, list("abcdefg")))
    assert servers.environment[VISIBLE] == "a,b,c,d,e,f"


def test_without_such_gpus_and_in_other_families_nothing_paints_apart():
    assert gpus_wanted(config(*PAINTING)) == 4
    other = config(*PAINTING[1:], "rollout.environment.gpus=2")
    assert gpus_wanted(other) == 4
    assert "painting" not in [who for who, _, _ in placement_rows(other)]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (("rollout.environment.gpus=5",), "5 for 4 processes .* at most 4"),
        (("rollout.environment.gpus=3",), "3 cannot be shared equally by 4 .* 2 or 4 works"),
        (("rollout.environment.gpus=1", "launch.device=cpu"), "are GPUs, and launch.device is cpu"),
    ],
)
def test_layouts_that_cannot_be_are_refused(settings, says):
    (found,) = placement_conflicts(config(*PAINTING, *settings))
    assert found[0] == "rollout.environment.gpus"
    assert re.search(says, found[1])


def test_a_judge_may_share_the_trainers():
    found = config("launch.processes=2", JUDGE, "judges.scene.server.share_gpus=true")
    assert gpus_wanted(found) == 2
    assert place(found, ["a", "b"]).servers == {"judges.scene-0": ("a",)}


SERVED = (
    "policy={family: qwen, path: Qwen/Qwen-Image}",
    "algorithm.kl=k3",
    "rollout.completion.backend=vllm",
    "rollout.old_log_prob=recompute",
)


def test_replicas_share_the_trainers_side_by_side():
    found = config(
        *SERVED,
        "launch.processes=4",
        "rollout.sampler.server.share_gpus=true",
        "rollout.sampler.replicas=2",
        "rollout.sampler.vllm.tensor_parallel=2",
    )
    assert gpus_wanted(found) == 4
    placed = place(found, list("abcd")).servers
    assert placed == {"rollout.sampler-0": ("a", "b"), "rollout.sampler-1": ("c", "d")}
    assert "draws completions, shares the trainer's, 90%" in placement_rows(found)[1][2]


def test_what_servers_leave_of_a_gpu_is_counted_on_each():
    both = (
        *SERVED,
        JUDGE,
        "judges.scene.server.share_gpus=true",
        "judges.scene.vllm.gpu_memory_share=0.3",
        "rollout.sampler.server.share_gpus=true",
        "rollout.sampler.vllm.gpu_memory_share=0.5",
        "rollout.sampler.replicas=2",
        "launch.processes=2",
    )
    assert servers_share(config(*both)) == pytest.approx(0.8)
    asleep = config(*both, "judges.scene.vllm.sleep=true")
    assert servers_share(asleep) == pytest.approx(0.5)
    with pytest.raises(PlanError, match="would take 110% of one"):
        plan(config(*both, "judges.scene.vllm.gpu_memory_share=0.6"))


def test_only_a_policy_that_writes_has_its_completions_drawn():
    assert [label for label, _ in managed_servers(config(*SERVED))] == ["rollout.sampler-0"]
    assert not list(managed_servers(config("rollout.completion.backend=vllm")))
    away = ("rollout.sampler.placement=remote", "rollout.sampler.urls=[http://h:1]")
    assert not list(managed_servers(config(*SERVED, *away)))


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("token_env=sk-123", "never the token itself"),
        ("token_env=TOKEN", "a managed server's token is the run's own"),
        ("server.gpus=2", "2, but vllm.tensor_parallel is 1"),
        ("timeout=9999", "more than the deadline"),
        ("placement=in_process", "rollout.sampler.placement"),
        ("urls=[http://h:1]", "is for placement: remote"),
    ],
)
def test_a_sampler_that_cannot_be(setting, says):
    with pytest.raises(ConfigError, match=says):
        config(f"rollout.sampler.{setting}")


def test_without_gpus_everything_is_on_the_cpu():
    found = config(JUDGE, "rewards.ocr.placement=managed")
    placed = place(found, [])
    assert placed.trainer == ()
    assert set(placed.servers.values()) == {()}


def test_a_trainer_on_the_cpu_wants_none_and_its_judge_may():
    found = config("launch.device=cpu", JUDGE, "judges.scene.server.gpus=1")
    assert gpus_wanted(found) == 1
    assert place(found, ["a"]) == Placements((), (), {"judges.scene-0": ("a",)})


def test_only_managed_ones_are_started():
    found = config("judges.scene.placement=in_process", JUDGE, "rewards.ocr.placement=managed")
    assert [label for label, _ in managed_servers(found)] == ["rewards.ocr-0"]


def test_the_plan_says_who_computes_where():
    found = config(
        "launch.processes=1",
        JUDGE,
        "judges.scene.server.share_gpus=true",
        "judges.scene.vllm.gpu_memory_share=0.4",
        "judges.scene.vllm.sleep=true",
    )
    rows = placement_rows(found)
    assert rows[0][0] == "trainer"
    assert rows[0][2].endswith("; where there is no GPU, on the CPU")
    assert [row[:2] for row in rows] == [("trainer", "GPU 0"), ("judges.scene-0", "GPU 0")]
    assert "40% of their memory, sleeps while weights are updated" in rows[1][2]
    assert plan(found).placement == tuple(rows)


HUB_JUDGE = "judges.vlm={model: organisation/vlm}"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([HUB_JUDGE], True),
        ([HUB_JUDGE, "judges.vlm.server.gpus=1"], False),
        ([HUB_JUDGE, "judges.vlm.server.share_gpus=true"], False),
        ([HUB_JUDGE, "judges.vlm.device=cpu"], False),
        ([HUB_JUDGE, "judges.vlm.server.command=[serve, '{port}']"], False),
        ([HUB_JUDGE, "judges.vlm.placement=in_process"], False),
        ([HUB_JUDGE, "judges.vlm.placement=remote", "judges.vlm.urls=[http://h:1/v1]"], False),
        ([JUDGE], False),
    ],
)
def test_a_large_judge_on_the_cpu_is_warned_of(overrides, expected):
    asked = [f"rewards.yes_no.judge={name}" for name in ("vlm", "scene") if name in overrides[0]]
    warned = [text for text in plan(config(*overrides, *asked)).warnings if "on the CPU" in text]
    assert bool(warned) == expected
    assert all(text.startswith("judges.vlm.server.gpus: 0: organisation/vlm") for text in warned)


def test_a_judge_that_nobody_asks_is_warned_of_where_a_run_would_start_it():
    said = (
        "judges.scene: no reward that this run scores and no suite asks it, and it is started all "
        "the same"
    )
    assert said in plan(config(JUDGE)).warnings
    asked = "rewards.yes_no.judge=scene"
    remote = "rewards.yes_no={placement: remote, urls: ['http://h:1']}"
    assert said in plan(config(JUDGE, asked, remote)).warnings
    suite = ("evaluation.suite=yes_no", "evaluation.yes_no.judge=scene")
    elsewhere = ("judges.scene.placement=remote", "judges.scene.urls=[http://h:1/v1]")
    for more in ((asked,), suite, elsewhere):
        assert said not in plan(config(JUDGE, *more)).warnings


def test_a_large_judge_is_known_by_the_size_of_its_files(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    for size, expected in ((10**9, False), (10**9 + 1, True)):
        with weights.open("wb") as file:
            file.truncate(size)
        asked = (f"judges.vlm.model={tmp_path}", "rewards.yes_no.judge=vlm")
        warnings = plan(config(*asked)).warnings
        assert any("on the CPU" in text for text in warnings) == expected


@pytest.mark.parametrize("size", ["1b", "7b"])
def test_the_judge_of_a_janus_recipe_has_a_gpu_and_time_to_be_fetched(size):
    found = resolve(f"janus-pro-{size}/grpo")
    assert gpus_wanted(found) == {"1b": 1, "7b": 9}[size]
    assert not any("on the CPU" in text for text in plan(found).warnings)
    assert "--trust-remote-code" in found.judges["internvl"].vllm.arguments
    assert found.judges["internvl"].startup >= 1800


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["launch.device=cpu", "judges.scene.server.share_gpus=true"], "server.share_gpus"),
        (
            [
                "launch.processes=1",
                "judges.scene.server.share_gpus=true",
                "judges.scene.vllm.tensor_parallel=2",
            ],
            "judges.scene.vllm.tensor_parallel",
        ),
        (
            [
                "judges.scene.server.share_gpus=true",
                "judges.b={model: assets/tiny-judge, server: {share_gpus: true}}",
            ],
            "180%",
        ),
        (["judges.scene.model=assets/no-judge/at/all"], "neither a directory nor a hub id"),
        (["judges.scene.model=assets/nojudge"], "there is no folder assets/nojudge"),
        (["judges.scene.model=assets/tiny-sd3"], "has no config.json"),
        (["judges.scene.server.environment=nope"], "judges.scene.server.environment: 'nope'"),
        (
            ["rewards.ocr={placement: managed, server: {environment: nope}}"],
            "rewards.ocr.server.environment: 'nope'",
        ),
        (
            [
                "judges.scene={replicas: 3, server: {port: 9000}}",
                "rewards.ocr={placement: managed, server: {port: 9002}}",
            ],
            "rewards.ocr.server.port: 9002 is also that of judges.scene-2",
        ),
        (
            ["rewards.custom.mine.function=examples.rewards.contrast:nope"],
            "examples.rewards.contrast has no nope",
        ),
        (
            [
                "judges.scene.server.share_gpus=true",
                "judges.scene.vllm.sleep=true",
                "train.one_step_off=true",
            ],
            "judges.scene.vllm.sleep",
        ),
        (
            [
                "judges.scene.server.share_gpus=true",
                "judges.scene.vllm.sleep=true",
                "rewards.yes_no={judge: scene, placement: managed}",
            ],
            "rewards.yes_no.placement",
        ),
    ],
)
def test_what_cannot_be_placed_is_refused_by_its_key(overrides, words):
    with pytest.raises(PlanError, match=words):
        plan(config(JUDGE, *overrides))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rewards.yes_no.judge=nobody"], "'nobody' is not one of judges .declared: scene"),
        (["judges.scene.modle=x"], "judges.scene.modle: unknown key; did you mean judges.scene.mo"),
        (["judges.Scene.model=x"], "judges.Scene"),
        (["rewards.custom.ocr.function=a:b"], "rewards.custom.ocr: there is a reward of that name"),
        (["judges.scene.vllm.sleep=true"], "judges.scene.vllm.sleep: is for a judge that shares"),
        (["judges.other.placement=managed"], "judges.other.model: must be set$"),
        (["rewards.custom.mine.function=a.py"], "a dotted module, a colon and a name"),
        (["judges.scene.server.variables={'A=B': x}"], "is no environment variable"),
        (["judges.scene.server.variables={db_password: x}"], "looks like a secret"),
    ],
)
def test_a_mistake_is_named_by_its_key(overrides, words):
    with pytest.raises(ConfigError, match=words):
        config(JUDGE, *overrides)


@pytest.mark.parametrize(
    "key",
    [
        "rewards.edit_yes_no={judge: scene, following_question: %s}",
        "evaluation.editing.following_question=%s",
        "evaluation.paircomp.question=%s",
        "evaluation.yes_no.question=%s",
    ],
)
def test_a_question_about_the_prompt_has_the_prompt_in_it(key):
    config(JUDGE, key % "'Does it show {prompt}?'")
    with pytest.raises(ConfigError, match=r"question.*write \{prompt\} where it is"):
        config(JUDGE, key % "'Is it good?'")


@pytest.mark.parametrize(("other", "told"), [("Is it good?", True), ("Is it {prompt}?", False)])
def test_a_reward_that_never_asks_about_the_prompt_is_told(other, told):
    asked = f"rewards.yes_no={{judge: scene, questions: {{shows: 'A picture?', more: '{other}'}}}}"
    warnings = plan(config(JUDGE, asked)).warnings
    assert any(one.startswith("rewards.yes_no.questions: none has") for one in warnings) == told


def test_the_plan_counts_what_judges_are_asked():
    found = plan(
        config(
            JUDGE,
            "judges.scene.measurements=3",
            "rewards.yes_no={judge: scene, questions: {a: x, b: y}}",
            "rewards.unified_reward_think={judge: scene}",
        )
    )
    group = config().rollout.group_size
    assert found.reward_calls == 3 * found.images
    assert found.judge_calls == found.images * 3 * (
        2 + group - 1
    )  # n(n - 1) for a group of n, both orders
