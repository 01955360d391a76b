"""Which GPUs of this machine the trainer's ranks and the managed servers compute on.

The trainer has the first ones, one a rank, and those that only paint for its ranks
(rollout.environment.gpus) behind them. Servers with GPUs of their own follow, in the order of the
configuration; those that share compute on the ranks', replicas side by side from the first one on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from atelier.config.asked_judges import judges_asked_here
from atelier.config.divisors import counted, nearest_divisors
from atelier.config.paths import from_root
from atelier.config.schema import RunConfig
from atelier.config.sections.judge import JudgeConfig
from atelier.config.sections.rewards import JudgedSection
from atelier.config.sections.sampler import SamplerConfig
from atelier.config.sections.servers import Placed

LARGEST_ON_CPU = 10**9  # bytes of weights that still answer in seconds
SAMPLER = "rollout.sampler"


@dataclass(frozen=True)
class Placements:
    """GPUs by name: of the ranks, one each; that paint for them; of every server by its label."""

    trainer: tuple[str, ...]
    painters: tuple[str, ...]
    servers: Mapping[str, tuple[str, ...]]


def managed_servers(config: RunConfig) -> Iterator[tuple[str, Placed]]:
    """Label and section of every server the run starts; judges before the rewards that ask them.

    A label is key and replica: `judges.scene-0`.
    """
    sampler = config.sampler
    sections: dict[str, Placed] = {
        **({SAMPLER: sampler} if sampler is not None else {}),
        **{f"judges.{name}": judge for name, judge in config.judges.items()},
        **config.rewards.by_path(),
    }
    for label, section in sections.items():
        if section.placement == "managed":
            for index in range(section.replicas):
                yield f"{label}-{index}", section


def ranks_with_gpus(config: RunConfig) -> int:
    """Ranks of a node that compute on a GPU each, where there are any."""
    return config.launch.processes if config.launch.device != "cpu" else 0


def painting_gpus(config: RunConfig) -> int:
    """GPUs that paint and do nothing else."""
    is_apart = config.policy.family == "qwen" and config.launch.device != "cpu"
    return config.rollout.environment.gpus if is_apart else 0


def gpus_wanted(config: RunConfig) -> int:
    """How many GPUs a run computes on: its ranks', unless they are on the CPU, those that paint for
    them, and its servers'."""
    servers = sum(section.server.gpus for _, section in managed_servers(config))
    return training_gpus(config) + servers


def training_gpus(config: RunConfig) -> int:
    """How many GPUs a node computes on that only helps to train: servers are node 0's."""
    return ranks_with_gpus(config) + painting_gpus(config)


def place(config: RunConfig, gpus: Sequence[str]) -> Placements:
    """Deal out `gpus`: `gpus_wanted` of them, or none on a machine without."""
    ranks, painting = ranks_with_gpus(config), painting_gpus(config)
    trainer, painters = tuple(gpus[:ranks]), tuple(gpus[ranks : ranks + painting])
    left = list(gpus[ranks + painting :])
    servers: dict[str, tuple[str, ...]] = {}
    for label, section in managed_servers(config):
        if section.server.share_gpus:
            servers[label] = tuple(trainer[one] for one in _shared(label, section, len(trainer)))
        else:
            servers[label] = tuple(left[: section.server.gpus])
            del left[: section.server.gpus]
    return Placements(trainer, painters, servers)


def placement_rows(config: RunConfig) -> list[tuple[str, str, str]]:
    """What computes where, for people: (who, GPUs, remark)."""
    total = gpus_wanted(config)
    placed = place(config, [str(index) for index in range(total)])
    ranks = config.launch.processes
    remark = counted(ranks, "rank")
    if config.launch.nodes > 1:
        remark += f" on each of {config.launch.nodes} nodes"
    if config.launch.rollout_processes:
        remark += f", the last {config.launch.rollout_processes} of them only to sample"
    if config.launch.device == "auto":
        remark += "; where there is no GPU, on the CPU"
    rows = [("trainer", _named(placed.trainer), remark)]
    if placed.painters:
        each = ranks // len(placed.painters)
        rows.append(("painting", _named(placed.painters), f"for {counted(each, 'rank')} each"))
    for label, section in managed_servers(config):
        rows.append((label, _named(placed.servers[label]), _remark(section)))
    return rows


def placement_conflicts(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Key and problem of what cannot be placed so."""
    yield from _painting_conflicts(config)
    yield from _node_conflicts(config)
    ports: dict[int, str] = {}
    for label, section in managed_servers(config):
        key, _, index = label.rpartition("-")
        port = section.server.port + int(index)
        if section.server.port and ports.setdefault(port, label) != label:
            yield f"{key}.server.port", f"{port} is also that of {ports[port]}"
        if not section.server.share_gpus:
            continue
        if config.launch.device == "cpu":
            yield f"{key}.server.share_gpus", "shares the trainer's, and launch.device is cpu"
        if _ranks_of(section) > config.launch.processes:
            yield (
                f"{key}.vllm.tensor_parallel",
                f"it would take {_ranks_of(section)} GPUs, and the trainer has "
                f"{config.launch.processes} to share (launch.processes)",
            )
    taken: dict[int, float] = {}
    for label, gpu, share in _shares(config):
        taken[gpu] = taken.get(gpu, 0.0) + share
        if taken[gpu] > 1:
            yield (
                f"{label.rpartition('-')[0]}.vllm.gpu_memory_share",
                f"servers that share the trainer's GPUs would take {taken[gpu]:.0%} of one",
            )


def _painting_conflicts(config: RunConfig) -> Iterator[tuple[str, str]]:
    key, gpus, ranks = "rollout.environment.gpus", painting_gpus(config), config.launch.processes
    if config.launch.device == "cpu" and config.rollout.environment.gpus:
        yield key, "are GPUs, and launch.device is cpu; use 0"
    elif gpus > ranks:
        yield (
            key,
            f"{gpus} for {counted(ranks, 'process')} (launch.processes): a rank paints on one; "
            f"at most {ranks}",
        )
    elif gpus and ranks % gpus:
        yield (
            key,
            f"{gpus} cannot be shared equally by {ranks} processes (launch.processes); "
            f"{nearest_divisors(ranks, gpus)} works",
        )


def _node_conflicts(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Managed servers listen on node 0's loopback, where ranks of other nodes cannot ask them."""
    if config.launch.nodes == 1:
        return
    asked = {
        one.judge
        for one in config.rewards.sections().values()
        if isinstance(one, JudgedSection) and one.placement == "in_process"
    }
    for key in {label.rpartition("-")[0]: None for label, _ in managed_servers(config)}:
        section, _, name = key.partition(".")
        if section == "judges" and name not in asked:
            continue  # the suite asks it, on node 0
        yield (
            f"{key}.placement",
            f"a managed server is not reached from the other of launch.nodes {config.launch.nodes}:"
            " serve it for all (`atelier rewards serve --host`, a vLLM of your own) and name its "
            "address with placement: remote and urls",
        )


def servers_share(config: RunConfig) -> float:
    """Share of a trainer's GPU that servers keep for themselves, those that sleep not counted: of
    the GPU that has least left."""
    taken: dict[int, float] = {}
    for _, gpu, share in _shares(config, awake=True):
        taken[gpu] = taken.get(gpu, 0.0) + share
    return max(taken.values(), default=0.0)


def placement_warnings(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Key and warning of judges that nobody asks, and of models that vLLM would serve on the CPU
    and that are too large for it.

    Who sets `device: cpu`, or another program, knows what it does.
    """
    yield from _sampler_warnings(config)
    asked = judges_asked_here(config)
    for name, judge in config.judges.items():
        server = judge.server
        if judge.placement == "managed" and name not in asked:
            yield (
                f"judges.{name}",
                "no reward that this run scores and no suite asks it, and it is started all the "
                "same",
            )
            continue
        has_gpus = server.gpus or server.share_gpus
        if judge.placement != "managed" or has_gpus or server.command or judge.device == "cpu":
            continue
        if _is_large(judge.model):
            yield (
                f"judges.{name}.server.gpus",
                f"0: {judge.model} would answer on the CPU, which takes minutes an image; give it "
                f"GPUs of its own ({_ranks_of(judge)}), the trainer's (server.share_gpus), or name "
                "servers of others (placement: remote)",
            )


def _sampler_warnings(config: RunConfig) -> Iterator[tuple[str, str]]:
    sampler = config.sampler
    if sampler is None or sampler.placement != "managed" or config.launch.device == "cpu":
        return
    server = sampler.server
    if server.gpus or server.share_gpus or server.command:
        return
    if _is_large(f"{config.policy.path}/text_encoder"):
        yield (
            f"{SAMPLER}.server.gpus",
            "0: completions would be drawn on the CPU; give it GPUs of its own "
            f"({_ranks_of(sampler)}), or the trainer's (server.share_gpus)",
        )


def _is_large(model: str) -> bool:
    """Whether a model's files here pass LARGEST_ON_CPU; those of a hub are taken to."""
    folder = from_root(model)
    if not folder.is_dir():
        return True
    return sum(one.stat().st_size for one in folder.glob("*.safetensors")) > LARGEST_ON_CPU


def _ranks_of(section: Placed) -> int:
    """GPUs of one server."""
    if isinstance(section, JudgeConfig):
        return section.vllm.tensor_parallel * section.vllm.data_parallel
    return section.vllm.tensor_parallel if isinstance(section, SamplerConfig) else 1


def _shared(label: str, section: Placed, count: int) -> list[int]:
    """Which of the trainer's GPUs a server shares: the next ones of each replica."""
    own = min(_ranks_of(section), count)
    first = int(label.rpartition("-")[2]) * own
    return [(first + index) % count for index in range(own)]


def _shares(config: RunConfig, awake: bool = False) -> Iterator[tuple[str, int, float]]:
    """Label, number of the trainer's GPU and share of its memory of each vLLM that shares it.

    Args:
        awake: without those that give it back while weights are updated.
    """
    for label, section in managed_servers(config):
        if not isinstance(section, JudgeConfig | SamplerConfig) or not section.server.share_gpus:
            continue
        if awake and isinstance(section, JudgeConfig) and section.vllm.sleep:
            continue
        for gpu in _shared(label, section, config.launch.processes):
            yield label, gpu, section.vllm.gpu_memory_share


def _named(gpus: Sequence[str]) -> str:
    return f"GPU {', '.join(gpus)}" if gpus else "CPU"


def _remark(section: Placed) -> str:
    words = [section.model] if isinstance(section, JudgeConfig) else []
    if isinstance(section, SamplerConfig):
        words.append("draws completions")
    if section.server.environment is not None:
        words.append(f"environment {section.server.environment}")
    if not section.server.share_gpus:
        return ", ".join(words)
    if not isinstance(section, JudgeConfig | SamplerConfig):
        return ", ".join([*words, "shares the trainer's"])
    words.append(f"shares the trainer's, {section.vllm.gpu_memory_share:.0%} of their memory")
    if isinstance(section, JudgeConfig) and section.vllm.sleep:
        words.append("sleeps while weights are updated")
    return ", ".join(words)
