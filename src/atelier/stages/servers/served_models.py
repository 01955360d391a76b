"""What vLLM is started for: a judge, or the text encoder that draws a run's completions."""

from __future__ import annotations

import json
from pathlib import Path

from packaging.version import Version

from atelier.config.placement import SAMPLER
from atelier.config.schema import RunConfig
from atelier.config.sections.judge import JudgeConfig
from atelier.config.sections.sampler import LORA_RANKS, SamplerConfig
from atelier.judge.pictures import data_uri
from atelier.policies.qwen.served.files import SERVED_NAME
from atelier.rewards.scorers.judged import red_circle
from atelier.stages.servers.vllm import Golden, Serving

# The first whose requests are in tokens, with images, and say which weights answered.
OLDEST_SAMPLER = Version("0.32")


def judge_serving(judge: JudgeConfig, name: str) -> Serving:
    """A judge, ready when it has answered a question about an image."""
    own = judge.vllm
    image = {"type": "image_url", "image_url": {"url": data_uri(red_circle())}}
    text = {"type": "text", "text": "Is there a red circle? Answer yes or no."}
    body = {
        "model": judge.name_at_endpoint,
        "messages": [{"role": "user", "content": [image, text]}],
        "max_tokens": 1,
        "logprobs": True,
        "top_logprobs": judge.top_logprobs,
    }
    sleeps = ["--enable-sleep-mode"] if own.sleep else []
    return Serving(
        key=f"judges.{name}",
        identity=name,
        name=judge.name_at_endpoint,
        model=judge.model,
        title=judge.model,
        dtype=judge.dtype,
        vllm=own,
        golden=Golden("/v1/chat/completions", body, "its first question about an image"),
        arguments=_images(own.max_images),
        gpu_arguments=["--data-parallel-size", str(own.data_parallel), *sleeps],
        # Without it there is no way to ask for sleep.
        variables={"VLLM_SERVER_DEV_MODE": "1"} if own.sleep else {},
    )


def sampler_serving(config: RunConfig, sampler: SamplerConfig, folder: Path) -> Serving:
    """A run's text encoder, ready when it has written a token.

    Args:
        folder: its files, as vLLM reads them (policies.qwen.served.files).
    """
    policy, completion = config.policy, config.rollout.completion
    body = {"model": SERVED_NAME, "token_ids": [0], "sampling_params": {"max_tokens": 1}}
    words = ["--enable-scale-out"]  # requests in tokens
    words += ["--generation-config", "vllm"]  # none of a checkpoint's penalties
    mode = "processed" if completion.log_prob == "sampler" else "raw"
    words += ["--logprobs-mode", f"{mode}_logprobs"]
    words += _images(1 if config.rollout.kind == "edit" else 0)
    if policy.trainable == "lora":
        room = next(rank for rank in LORA_RANKS if rank >= policy.lora.rank)
        words += ["--enable-lora", "--max-loras", "1", "--max-lora-rank", str(room)]
        variables = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    else:
        variables = {"VLLM_SERVER_DEV_MODE": "1"}  # weights are read again on request
    return Serving(
        key=SAMPLER,
        identity=SAMPLER,
        name=SERVED_NAME,
        model=str(folder),
        title=f"{policy.path}, its text encoder",
        dtype=policy.dtype,
        vllm=sampler.vllm,
        golden=Golden("/inference/v1/generate", body, "its first token"),
        arguments=words,
        variables=variables,
        oldest=OLDEST_SAMPLER,
    )


def _images(most: int) -> list[str]:
    return ["--limit-mm-per-prompt", json.dumps({"image": most, "video": 0})]
