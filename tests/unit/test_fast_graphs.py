"""What is recorded when, and that a recording computes with what is there when it is played back.

A GPU's part is one function, `recorder`. Here another takes its place: as a CUDA graph does, it
runs on the tensors that were there when it was recorded, and leaves its result in the same memory.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from atelier.config.schema import RunConfig
from atelier.config.sections.policy import PolicyConfig
from atelier.data.prompts import Prompt
from atelier.policies import embedding_cache
from atelier.policies.base import Sample
from atelier.policies.sd3 import policy as sd3_policy
from atelier.policies.sd3.fast import graphs as graphs_module
from atelier.policies.sd3.fast.graphs import RECORDINGS, Graphs, Recorded, recorder
from atelier.policies.sd3.fast.install import make_fast
from atelier.policies.sd3.lora import add_adapter
from atelier.policies.sd3.policy import SD3Policy
from tests.support.random_transformers import build, inputs
from tests.support.runs import untrained_pipeline


class Recorder:
    """Counts what is recorded and played back."""

    def __init__(self) -> None:
        self.recorded = 0
        self.played = 0

    def __call__(self, run: Callable[[], Tensor]) -> Recorded:
        self.recorded += 1
        assert not torch.is_grad_enabled()
        made = torch.empty_like(run())  # warm-up

        def play() -> None:
            self.played += 1
            made.copy_(run())

        return play, made


@pytest.fixture
def counts() -> Recorder:
    return Recorder()


@pytest.fixture
def graphs(counts: Recorder) -> Graphs:
    return Graphs(counts)


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def transformer() -> nn.Module:
    made = build("sd35").requires_grad_(False)
    add_adapter(made, PolicyConfig().lora, seed=0)
    generator = torch.Generator().manual_seed(1)
    for one in made.parameters():
        if one.requires_grad:
            one.data = torch.randn(one.shape, generator=generator) / len(one[0])
    return make_fast(made, compiled=False)


def plain(module: nn.Module, told: dict[str, Tensor]) -> Tensor:
    return module(**told, return_dict=False)[0]


def other(told: dict[str, Tensor]) -> dict[str, Tensor]:
    """Other values of the same kind."""
    return {name: value.flip(0) * 0.9 for name, value in told.items()}


# Values -------------------------------------------------------------------------------------------


def test_it_gives_what_the_module_gives_of_each_input(graphs: Graphs, counts: Recorder) -> None:
    module = transformer()
    for told in (inputs(), other(inputs()), inputs()):
        assert torch.equal(graphs(module, told), plain(module, told))
    assert (counts.recorded, counts.played) == (1, 3)


def test_a_result_stays_what_it_is(graphs: Graphs) -> None:
    module = transformer()
    first = graphs(module, inputs())
    kept = first.clone()
    second = graphs(module, other(inputs()))
    assert torch.equal(first, kept)
    assert not torch.equal(second, kept)
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()


def test_inputs_are_left_alone_and_may_go(graphs: Graphs) -> None:
    module, told = transformer(), inputs()
    graphs(module, told)
    for one in told.values():
        one.fill_(float("nan"))
    assert torch.equal(graphs(module, inputs()), plain(module, inputs()))
    assert told["timestep"].isnan().all()


def test_inputs_may_be_views_of_fewer_numbers(graphs: Graphs) -> None:
    """As the timestep of a batch is."""
    module = transformer()
    for at in (500.0, 250.0):
        told = {**inputs(), "timestep": torch.tensor([at]).expand(3)}
        assert torch.equal(graphs(module, told), plain(module, told))


def test_weights_changed_in_place_are_computed_with(graphs: Graphs, counts: Recorder) -> None:
    module = transformer()
    before = graphs(module, inputs())
    for one in module.parameters():
        one.mul_(1.1)
    after = graphs(module, inputs())
    assert torch.equal(after, plain(module, inputs()))
    assert not torch.equal(after, before)
    assert counts.recorded == 1


def test_a_lost_gradient_is_an_error(graphs: Graphs) -> None:
    with torch.enable_grad(), pytest.raises(ValueError, match=r"torch\.no_grad"):
        graphs(transformer(), inputs())


# What is recorded by itself -----------------------------------------------------------------------


def test_each_kind_of_pass_is_recorded_once(graphs: Graphs, counts: Recorder) -> None:
    module = transformer()
    copied = copy.deepcopy(module)
    for one in copied.parameters():
        one.mul_(1.1)

    def all_kinds() -> list[tuple[Tensor, Tensor]]:
        short = {"encoder_hidden_states": inputs()["encoder_hidden_states"][:, :3]}
        made = []
        for told in (inputs(), inputs(batch=2), {**inputs(), **short}):
            for one in (module, copied):
                made.append((graphs(one, told), plain(one, told)))
        module.disable_adapters()
        made.append((graphs(module, inputs()), plain(module, inputs())))
        module.enable_adapters()
        with torch.autocast("cpu", torch.bfloat16):
            made.append((graphs(module, inputs()), plain(module, inputs())))
        return made

    for _ in range(2):
        for found, expected in all_kinds():
            assert torch.equal(found, expected)
            assert found.dtype == expected.dtype
        assert counts.recorded == 2 * 3 + 2


def test_other_dtypes_are_other_kinds(graphs: Graphs, counts: Recorder) -> None:
    module = transformer().to(torch.bfloat16)
    told = {name: value.to(torch.bfloat16) for name, value in inputs().items()}
    graphs(module, told)
    graphs(module, {**told, "timestep": told["timestep"].float()})
    assert counts.recorded == 2


def data_set(module: nn.Module) -> None:
    weight = module.transformer_blocks[0].attn.to_k.base_layer.weight
    weight.data = weight.data * 2


def outside_of_blocks(module: nn.Module) -> None:
    module.proj_out.weight.data = module.proj_out.weight.data * 2


def table_replaced(module: nn.Module) -> None:
    module.pos_embed.pos_embed = module.pos_embed.pos_embed * 2


def parameter_replaced(module: nn.Module) -> None:
    up = module.transformer_blocks[1].attn.to_k.lora_B["default"]
    up.weight = nn.Parameter(up.weight * 2)


def rescaled(module: nn.Module) -> None:
    module.transformer_blocks[0].attn.to_k.scaling["default"] = 9.0


@pytest.mark.parametrize(
    "change",
    [data_set, outside_of_blocks, table_replaced, parameter_replaced, rescaled],
    ids=lambda one: one.__name__,
)
def test_what_lies_elsewhere_is_recorded_anew(graphs: Graphs, counts: Recorder, change) -> None:
    module = transformer()
    for _ in range(2):  # the first pass lays weights together, and is no change
        before = graphs(module, inputs())
    assert counts.recorded == 1
    change(module)
    after = graphs(module, inputs())
    assert counts.recorded == 2
    assert torch.equal(after, plain(module, inputs()))
    assert not torch.equal(after, before)
    graphs(module, inputs())
    assert counts.recorded == 2


def test_other_memory_is_noticed_whatever_is_in_it(graphs: Graphs, counts: Recorder) -> None:
    module = transformer()
    graphs(module, inputs())
    for one in module.parameters():
        one.data = one.data.clone()
    graphs(module, inputs())
    assert counts.recorded == 2


def test_recordings_of_what_lay_elsewhere_are_dropped(graphs: Graphs) -> None:
    module = transformer()
    graphs(module, inputs())
    graphs(module, inputs(batch=2))
    data_set(module)
    graphs(module, inputs())
    assert len(graphs._modules[module].passes) == 1


def test_too_many_kinds_run_as_they_are(
    graphs: Graphs, counts: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    module = transformer()
    with caplog.at_level(logging.WARNING):
        for rows in range(1, RECORDINGS + 3):
            told = inputs(batch=rows)
            assert torch.equal(graphs(module, told), plain(module, told))
    assert counts.recorded == counts.played == RECORDINGS
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    graphs(module, inputs(batch=1))
    assert counts.played == RECORDINGS + 1, "those that are there go on"
    data_set(module)
    graphs(module, inputs(batch=1))
    assert counts.recorded == RECORDINGS + 1, "those that are dropped count no more"


# The GPU's part -----------------------------------------------------------------------------------


def test_a_recording_is_warmed_up_and_made_aside_in_shared_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In which order torch is asked for what; whether a GPU does it needs one."""
    asked: list[object] = []

    class Stream:
        def __init__(self, name: str = "aside") -> None:
            self.name = name

        def wait_stream(self, one: Stream) -> None:
            asked.append(f"{self.name} waits for {one.name}")

    class Within:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            asked.append(f"{self.name}:")

        def __exit__(self, *_: object) -> None:
            asked.append(f"end of {self.name}")

    def graph(one: object, pool: str, stream: Stream, capture_error_mode: str) -> Within:
        return Within(f"recording in {pool} on {stream.name}, {capture_error_mode}")

    cuda = SimpleNamespace(
        graph_pool_handle=lambda: "pool",
        Stream=lambda device: Stream(),
        current_stream=lambda device: Stream("current"),
        stream=lambda one: Within(one.name),
        CUDAGraph=lambda: SimpleNamespace(replay=lambda: asked.append("played")),
        graph=graph,
    )
    monkeypatch.setattr(graphs_module.torch, "cuda", cuda)
    monkeypatch.setattr(
        graphs_module.torch, "clear_autocast_cache", lambda: asked.append("forgets casts")
    )

    def run() -> Tensor:
        asked.append("run")
        return torch.ones(1)

    play, made = recorder(torch.device("cuda"))(run)
    play()
    assert torch.equal(made, torch.ones(1))
    assert asked == [
        "aside waits for current",
        "aside:",
        *["run"] * graphs_module.WARM_UP,
        "end of aside",
        "current waits for aside",
        "forgets casts",
        "recording in pool on aside, thread_local:",
        "run",
        "end of recording in pool on aside, thread_local",
        "forgets casts",
        "played",
    ]


# In a policy --------------------------------------------------------------------------------------

PROMPTS = [Prompt(0, 0, "a red circle", {}), Prompt(1, 0, "a blue circle", {})]
STEPS, EVALUATED = 3, 2
SAMPLES = [Sample(i, i, PROMPTS[i]) for i in range(2)]


@pytest.fixture(scope="module", autouse=True)
def _embeddings_on_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedding_cache, "CACHE", str(tmp_path_factory.mktemp("embeddings")))
        yield


def policy_of(trainable: str) -> SD3Policy:
    sections = {
        "policy": {
            "path": str(untrained_pipeline()),
            "trainable": trainable,
            "transformer": "fast",
            "max_sequence_length": 16,
            "text": {"disk_gigabytes": 0.1},
        },
        "rollout": {
            "num_inference_steps": STEPS,
            "guidance_scale": 2.0,
            "window": {"strategy": "all"},
        },
        "evaluation": {"num_inference_steps": EVALUATED, "guidance_scale": 1.0},
    }
    made = SD3Policy.load(RunConfig.model_validate(sections), "cpu")
    made.prepare_reference()
    generator = torch.Generator().manual_seed(0)
    for one in made.trainable().values():
        one.add_(torch.randn(one.shape, generator=generator), alpha=0.1)
    made.begin_step(1)
    return made


class Wrapped(nn.Module):
    """What an engine makes of a module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.passes = 0

    def forward(self, **told: Tensor) -> Tensor:
        self.passes += 1
        return self.module(**told)


def learned(policy: SD3Policy) -> tuple[list[Tensor], Wrapped]:
    """A rollout, its replays, their gradients, and images of an evaluation."""
    engine = Wrapped(policy.module)
    rollout = policy.rollout(policy.module, SAMPLES)
    made = [rollout.record["latents"], rollout.old_log_probs]
    with torch.enable_grad():
        for part in policy.parts(rollout):
            replay = policy.replay(engine, rollout, part, True)
            replay.log_prob.sum().backward()
            made += [replay.log_prob, *replay.statistics.values()]
    made += [one.grad for one in policy.trainable().values() if one.grad is not None]
    made.append(torch.from_numpy(policy.generate(policy.module, PROMPTS, [1, 2]).images))
    return made, engine


@pytest.mark.parametrize("trainable", ["lora", "full"])
def test_a_policy_computes_the_same(trainable: str, counts: Recorder) -> None:
    torch.set_num_threads(1)
    policies = [policy_of(trainable) for _ in range(2)]
    policies[1]._graphs = Graphs(counts)
    (expected, _), (found, engine) = (learned(one) for one in policies)
    assert len(found) == len(expected) > 10
    for one, another in zip(found, expected, strict=True):
        assert torch.equal(one, another)
    actions = STEPS - 1
    assert counts.played == STEPS + actions + EVALUATED, "rollout, reference, evaluation"
    assert engine.passes == actions, "with gradients"
    assert counts.recorded == 3


@pytest.mark.parametrize(
    ("transformer", "compile_", "device", "recorded"),
    [
        ("fast", None, "cuda", True),
        ("fast", True, "cuda", True),
        ("fast", False, "cuda", False),
        ("fast", True, "cpu", False),
        ("stock", None, "cuda", False),
        ("stock", True, "cuda", False),
    ],
)
def test_what_is_compiled_on_a_gpu_is_recorded(
    monkeypatch: pytest.MonkeyPatch, transformer: str, compile_, device: str, recorded: bool
) -> None:
    monkeypatch.setattr(sd3_policy, "recorder", lambda device: Recorder())
    policy = PolicyConfig(transformer=transformer, compile=compile_)
    assert (sd3_policy._graphs(policy, torch.device(device)) is not None) == recorded


def test_the_empty_prompt_is_on_the_device_once() -> None:
    policy = policy_of("lora")
    conditions = policy.encode(PROMPTS, 2.0)
    first, second = policy.guided(conditions), policy.guided(conditions)
    nothing = policy.encode_texts([""])
    for both in (first, second):
        assert all(row is nothing.rows[0] for row in both.rows[:2])
        assert [*both.rows[2:]] == [*conditions.rows]
        assert torch.equal(both.embeddings[0], nothing.embeddings[0])
        assert torch.equal(both.pooled[2:], conditions.pooled)
