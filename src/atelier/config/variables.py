"""Environment variables of DeepGen-RL's guide, and the keys they stand for.

They are taken where a run is submitted, and only where that is asked for (`--variables`): names
such as NNODES and MASTER_ADDR are set by clusters and containers for whatever runs there, and must
not change the runs of people who never read that guide. What was taken is written into run.json and
the resolved configuration; no stage, no worker and no trainer reads one of them.

They rank above the recipe and below params.yaml and `--set`. Tokens are none of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from atelier.config.sections.algorithm import AlgorithmConfig
from atelier.config.yaml_files import Layer, Origin, number
from atelier.errors import ConfigError

Read = Callable[[str], Mapping[str, Any]]

# In keys: which of `judges` a reward or a suite asks.
JUDGE = "JUDGE"


@dataclass(frozen=True)
class Variable:
    """One variable.

    Attributes:
        name: of the variable.
        keys: what it stands for; empty: nothing here, and `why` says why.
        read: its text as values of keys.
        section: of the run, without which it says nothing; with JUDGE in `keys`, the section whose
            `judge` that is.
        why: what is different here.
        instead: other names, which count where this one is not set.
        algorithm: `algorithm.name` of the run, with another of which it says nothing.
    """

    name: str
    keys: tuple[str, ...]
    read: Read
    section: str | None = None
    why: str = ""
    instead: tuple[str, ...] = ()
    algorithm: str | None = None

    @property
    def difference(self) -> str:
        """What a table says of it beside its keys."""
        where = f"of a run with `{self.section}`" if self.section else ""
        which = f"with `algorithm.name: {self.algorithm}`" if self.algorithm else ""
        return "; ".join(part for part in (where, which, self.why) if part)


def _text(*keys: str) -> tuple[tuple[str, ...], Read]:
    return keys, lambda text: dict.fromkeys(keys, text)


def _number(*keys: str) -> tuple[tuple[str, ...], Read]:
    """A number as files have it; what is none stays text, and the schema says so."""
    return keys, lambda text: dict.fromkeys(keys, number(text.strip(), text))


def _service(section: str) -> tuple[tuple[str, ...], Read]:
    """The address of a service, with http:// where that is left out, as their client has it."""
    keys = (f"{section}.urls", f"{section}.placement")
    return keys, lambda text: {keys[0]: [_address(text)], keys[1]: "remote"}


def _endpoint(section: str) -> tuple[tuple[str, ...], Read]:
    """The same of an OpenAI-compatible endpoint, whose addresses end in /v1 here."""
    keys = (f"{section}.urls", f"{section}.placement")

    def read(text: str) -> dict[str, Any]:
        address = _address(text)
        return {
            keys[0]: [address if address.endswith("/v1") else f"{address}/v1"],
            keys[1]: "remote",
        }

    return keys, read


def _address(text: str) -> str:
    return (text if "://" in text else f"http://{text}").rstrip("/")


def _file(path: str, source: str, form: str) -> tuple[tuple[str, ...], Read]:
    """A file of theirs, in its form."""
    return (path, source), lambda text: {path: text, source: form}


def _choice(key: str, **choices: Any) -> tuple[tuple[str, ...], Read]:
    """Words of theirs for values; others stay as they are, and the schema refuses them."""
    return (key,), lambda text: {key: choices.get(text, text)}


def _switch(key: str, on: Any = True, off: Any = False) -> tuple[tuple[str, ...], Read]:
    """1 and 0."""
    return (key,), lambda text: {key: {"1": on, "0": off}.get(text, text)}


def _mirror(section: str) -> tuple[tuple[str, ...], Read]:
    """offline and online; `disabled` takes the mirror away."""
    keys = (f"{section}.mode", f"{section}.enabled")

    def read(text: str) -> dict[str, Any]:
        if text == "disabled":
            return {keys[1]: False}
        return {keys[0]: "online" if text == "cloud" else text}

    return keys, read


def _none() -> tuple[tuple[str, ...], Read]:
    return (), lambda text: {}


_SERVED_ALONE = "a server that the run starts has its settings in its section"
_REWARDS = {
    "OCR": "ocr",
    "PICKSCORE": "pick_score",
    "GEN_EVAL": "geneval",
}
# Their services without a reward of that name here.
_CUSTOM = ("AESTHETIC", "IMAGE_REWARD", "DEQA", "HPS", "EDITREWARD")
_JUDGED = {
    "UNIFIEDREWARD_THINK": "unified_reward_think",
    "UNIFIEDREWARD": "unified_reward",
    "UNIFIEDREWARD_SGLANG": "unified_reward",
    "OCR_VLLM": "vlm_ocr",
}
_OWN = f"judges.{JUDGE}"


def _of_services() -> Iterator[Variable]:
    for name, reward in _REWARDS.items():
        section = f"rewards.{reward}"
        yield Variable(
            f"{name}_URL", *_service(section), section, "a service of ours: `atelier rewards serve`"
        )
        yield Variable(f"{name}_WORKERS", *_number(f"{section}.workers"), section)
    for name in _CUSTOM:
        why = "no reward of that name: a section of `rewards.custom` has `urls`, `workers`"
        yield Variable(f"{name}_URL", *_none(), why=why)
        yield Variable(f"{name}_WORKERS", *_none(), why=why)
    for name, reward in _JUDGED.items():
        section = f"rewards.{reward}"
        yield Variable(f"{name}_URL", *_endpoint(_OWN), section)
        yield Variable(
            f"{name}_WORKERS",
            *_number(f"{_OWN}.concurrency"),
            section,
            "questions at a time of each trainer process",
        )


def _names(names: str, why: str) -> Iterator[Variable]:
    """Variables that stand for nothing, for one reason."""
    for name in names.split():
        yield Variable(name, *_none(), why=why)


VARIABLES: tuple[Variable, ...] = (
    # Nodes and processes
    Variable("NNODES", *_number("launch.nodes"), why="the length of NODE_IP_LIST is not looked at"),
    Variable("NODE_RANK", *_number("launch.node_rank"), instead=("INDEX",)),
    Variable("MASTER_ADDR", *_text("launch.master_address"), instead=("CHIEF_IP",)),
    Variable(
        "MASTER_PORT",
        *_number("launch.master_port"),
        why="where nodes meet; torchrun does at the one after it",
    ),
    Variable("NGPUS", *_number("launch.processes"), why="unset: what the recipe says"),
    *_names("NODE_IP_LIST", "set NNODES: how many there are is not counted from a list"),
    *_names("PYTORCH_CUDA_ALLOC_CONF", "PyTorch reads it itself, in every process of the run"),
    # Model and data
    Variable("CHECKPOINT", *_text("policy.path"), why="weights to start from"),
    Variable("SD3_5_MODEL_NAME_OR_PATH", *_text("policy.bases.pipeline")),
    Variable("QWEN2_5_VL_MODEL_NAME_OR_PATH", *_text("policy.bases.vlm")),
    Variable(
        "CLIP_MODEL_NAME_OR_PATH",
        *_text("rewards.clip_similarity.path"),
        section="rewards.clip_similarity",
    ),
    *_names("MODEL_CONFIG", "the model is what its files say"),
    Variable("DATASET_CONFIG", *_file("data.path", "data.source", "deepgen")),
    Variable(
        "EVAL_DATASET_CONFIG",
        *_file("data.heldout_path", "data.heldout_source", "deepgen_eval"),
    ),
    Variable(
        "SFTAUX_DATASET_CONFIG",
        *_file("data.sft.files.sftaux.path", "data.sft.source", "files"),
        why="read and not run, beside other files that `data.sft.files` names",
    ),
    Variable(
        "DATA_ROOT",
        *_text("data.sft.files.sftaux.data_root"),
        section="data.sft.files.sftaux",
        why="elsewhere, paths in a data file are relative to it",
    ),
    *_names("OUTPUT_DIR LOG_DIR", "a run has a folder of its own; ATELIER_RUNS says below which"),
    # Rewards and judges
    *_of_services(),
    *_names("REWARD_SERVICE_ADDR", "each reward names its servers: a wrong one is seen at once"),
    Variable("OCR_VLLM_MODEL", *_text(f"{_OWN}.model"), section="rewards.vlm_ocr"),
    Variable(
        "OCR_VLLM_MAX_TOKENS", *_number(f"{_OWN}.parameters.max_tokens"), section="rewards.vlm_ocr"
    ),
    Variable(
        "OCR_VLLM_TEMPERATURE",
        *_number(f"{_OWN}.parameters.temperature"),
        section="rewards.vlm_ocr",
    ),
    Variable(
        "UNIFIEDREWARD_MODEL", *_text(f"{_OWN}.model"), section="rewards.unified_reward_think"
    ),
    Variable(
        "VLLM_DATA_PARALLEL_SIZE",
        *_number(f"{_OWN}.vllm.data_parallel"),
        section="rewards.unified_reward_think",
        why="of a server that the run starts",
    ),
    Variable(
        "VLLM_TENSOR_PARALLEL_SIZE",
        *_number(f"{_OWN}.vllm.tensor_parallel"),
        section="rewards.unified_reward_think",
        why="of a server that the run starts",
    ),
    *_names("VLLM_PARALLEL_MODE", "the two sizes say it"),
    *_names("VLLM_SERVER_DEV_MODE VLLM_LOG_STATS", _SERVED_ALONE),
    *_names("VLLM_MAX_WORKERS", "each judge has its `concurrency`"),
    Variable(
        "OCR_SCORER_IMPL",
        *_choice("rewards.ocr.rule", old="target", new="spans"),
        section="rewards.ocr",
    ),
    Variable("OCR_MIN_CONF", *_number("rewards.ocr.min_confidence"), section="rewards.ocr"),
    Variable(
        "OCR_IGNORE_PUNCT",
        *_switch("rewards.ocr.spans.kept_signs", on="ascii", off="all"),
        section="rewards.ocr",
        why="1 leaves nothing of Chinese; `letters` keeps those of any script",
    ),
    Variable(
        "OCR_CASE_SENSITIVE", *_switch("rewards.ocr.spans.case_sensitive"), section="rewards.ocr"
    ),
    Variable("OCR_NGRAM_MAX", *_number("rewards.ocr.spans.most_joined"), section="rewards.ocr"),
    Variable(
        "OCR_USE_CONFUSION_FOLD", *_switch("rewards.ocr.spans.fold_confused"), section="rewards.ocr"
    ),
    *_names("OCR_REWARD_MODE", "read by nothing there"),
    *_names("OCR_PORT", "without effect there; `atelier rewards serve --port`"),
    *_names(
        "DEEPGEN_EXCLUSIVE_VLLM_SERVERS DEEPGEN_EXCLUSIVE_VLLM_TIMEOUT_S "
        "DEEPGEN_EXCLUSIVE_VLLM_CONNECT_TIMEOUT_S DEEPGEN_EXCLUSIVE_VLLM_RETRIES "
        "DEEPGEN_EXCLUSIVE_VLLM_RETRY_BACKOFF_S DEEPGEN_EXCLUSIVE_VLLM_SWITCH_ON_REWARD_CALLS",
        "a judge that shares GPUs sleeps by its own `vllm.sleep`",
    ),
    # UniGenBench
    Variable("UNIGENBENCH_API_URL", *_endpoint(_OWN), section="evaluation.unigenbench"),
    Variable(
        "UNIGENBENCH_MODEL_NAME",
        *_text(f"{_OWN}.served_name"),
        section="evaluation.unigenbench",
    ),
    Variable(
        "UNIGENBENCH_WORKERS", *_number(f"{_OWN}.concurrency"), section="evaluation.unigenbench"
    ),
    # Algorithm
    Variable("ATRAIN_ADV_CLIP_MAX", *_number("algorithm.advantage_clip"), algorithm="grpo"),
    Variable("ATRAIN_NFT_BETA", *_number("algorithm.nft.strength"), algorithm="nft"),
    Variable("ATRAIN_NFT_ADV_CLIP_RANGE", *_number("algorithm.advantage_clip"), algorithm="nft"),
    *_names(
        "ATRAIN_CLAMP_LOGPROB ATRAIN_CLAMP_LOGPROB_DIFF",
        "log-probabilities that are not finite stop the run",
    ),
    Variable(
        "ATRAIN_INCLUDE_LAST_DENOISE_STEP",
        *_switch("rollout.window.include_last"),
        why="not with CPS, whose last step has no noise",
    ),
    *_names("ATRAIN_GRPOGUARD_PAPER_IMPL", "`rollout.log_prob: ratio_norm` is the one form"),
    *_names("ATRAIN_GRPOGUARD_HIGHCLIP_RANGE", "read and not applied there"),
    # Logging
    *_names(
        "GRPO_PHASE_LOG_LEVEL GRPO_PHASE_LOG_FILE GRPO_PHASE_PRINT_ENABLED",
        "seconds of each phase are metrics of every step (`time/*`)",
    ),
    *_names(
        "DEBUG_CPS_SDE DEBUG_UNIFIED_REWARD DEBUG_OCR_VLLM JONB_DEBUG_OCR DEBUG_SWANLAB_VIS "
        "DEBUG_EVAL_DEVICEISSUE",
        "questions and scores are in the run's folder",
    ),
    Variable("WANDB_PROJECT", *_text("tracking.wandb.project")),
    Variable(
        "WANDB_RUN_NAME", *_text("tracking.wandb.run_name"), instead=("WANDB_NAME", "RUN_NAME")
    ),
    Variable("WANDB_MODE", *_mirror("tracking.wandb"), why="that there is one, `enabled` says"),
    Variable("SWANLAB_PROJ_NAME", *_text("tracking.swanlab.project"), instead=("SWANLAB_PROJECT",)),
    Variable("SWANLAB_EXP_NAME", *_text("tracking.swanlab.run_name")),
    Variable("SWANLAB_MODE", *_mirror("tracking.swanlab"), why="that there is one, `enabled` says"),
    *_names("WANDB_API_KEY", "a token: their package reads it, and it is in no file of ours"),
)
_ALGORITHM: str = AlgorithmConfig.model_fields["name"].default
BY_NAME: Mapping[str, Variable] = {
    name: one for one in VARIABLES for name in (*reversed(one.instead), one.name)
}


def taken(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Those that are set and stand for a key, by name, as `resolve` takes them.

    One that is set to nothing is not set; of several names of one, the first that is set counts.

    Args:
        environment: default: this process's.
    """
    return {names[0]: text for one, names, text in _set_in(environment) if one.keys}


def not_taken(environment: Mapping[str, str] | None = None) -> list[str]:
    """Of those that are set, each that `taken` leaves out, and why."""
    told = []
    for one, names, _ in _set_in(environment):
        told += [f"{name}: not taken: {names[0]} is set, too" for name in names[1:]]
        if not one.keys:
            told.append(f"{names[0]}: not taken: {one.why}")
    return told


def _set_in(
    environment: Mapping[str, str] | None,
) -> Iterator[tuple[Variable, list[str], str]]:
    """Each variable that is set, its names that are, and the text of the first."""
    environment = os.environ if environment is None else environment
    for one in VARIABLES:
        names = [name for name in (one.name, *one.instead) if environment.get(name)]
        if names:
            yield one, names, environment[names[0]]


def joined(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """What a run took before, and what it takes now, which counts where both are one variable,
    whatever name that has."""
    replaced = [BY_NAME.get(name) for name in now]
    kept = {name: text for name, text in before.items() if BY_NAME.get(name) not in replaced}
    return {**kept, **now}


def layer_of(variables: Mapping[str, str], around: Mapping[str, Any]) -> tuple[Layer, list[str]]:
    """What variables set, as a layer, and remarks on those that set nothing.

    Args:
        variables: name and text of each that was taken.
        around: the values of all other layers, those above among them, which say what judges are
            called, which sections there are, and which algorithm learns.

    Raises:
        ConfigError: a name is none of VARIABLES.
    """
    layer, remarks = Layer(), []
    for name in variables:
        if name not in BY_NAME or not BY_NAME[name].keys:
            raise ConfigError(f"variable {name}: stands for no key here; `atelier variables` lists")
    # In the order of VARIABLES, for one may belong to a section that another makes.
    for name in sorted(variables, key=lambda name: VARIABLES.index(BY_NAME[name])):
        variable, origin = BY_NAME[name], Origin(f"${name}")
        if problem := _idle(variable, layer.values, around):
            remarks.append(f"{name}: does nothing: {problem}")
            continue
        judge = str(_at(around, f"{variable.section}.judge"))
        for key, value in variable.read(variables[name]).items():
            _put(layer, key.replace(JUDGE, judge).split("."), value, origin)
    return layer, remarks


def _idle(variable: Variable, own: Mapping[str, Any], around: Mapping[str, Any]) -> str | None:
    """Why a variable says nothing of a run; None where it does."""
    section, algorithm = variable.section, _at(around, "algorithm.name") or _ALGORITHM
    if variable.algorithm not in (None, algorithm):
        return f"algorithm.name is {algorithm}, and not {variable.algorithm}"
    if section is None:
        return None
    if _at(around, section) is None and _at(own, section) is None:
        return f"the run has no {section}"
    asks = any(JUDGE in key for key in variable.keys)
    if asks and not isinstance(_at(around, f"{section}.judge"), str):
        return f"{section} asks no judge"
    return None


def _at(values: Mapping[str, Any], key: str) -> Any:
    """What stands under a dotted key; None where nothing does."""
    found: Any = values
    for word in key.split("."):
        found = found.get(word) if isinstance(found, Mapping) else None
    return found


def _put(layer: Layer, words: list[str], value: Any, origin: Origin) -> None:
    section = layer.values
    for depth, word in enumerate(words[:-1], start=1):
        section = section.setdefault(word, {})
        layer.origins.setdefault(tuple(words[:depth]), origin)
    section[words[-1]] = value
    layer.origins[tuple(words)] = origin
