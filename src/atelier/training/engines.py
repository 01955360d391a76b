"""Who averages gradients and steps the optimizer: torch DDP, or DeepSpeed ZeRO-2 and ZeRO-3.

Engines differ inside a step only. Outside they all give the same: full, named, engine-neutral
tensors to save, and a start from them, whatever the world size. The trained weights are loaded
into the module before the engine is made, so every engine clones its masters from them; only the
optimizer's state goes in afterwards.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from atelier.config.paths import repository_root
from atelier.config.sections.launch import LaunchConfig
from atelier.config.sections.policy_parts import Dtype
from atelier.config.sections.train import TrainConfig
from atelier.errors import Stopped
from atelier.training.distributed import World
from atelier.training.weights import CPU, copies, put_weights

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class OptimizerState:
    """AdamW's state by parameter name, full tensors on the CPU, and its update count.

    `scaler` is the state of the loss scaler that float16 needs, empty without.
    """

    updates: int
    moments: Mapping[str, Mapping[str, Tensor]]
    scaler: Mapping[str, float] = field(default_factory=dict)


class Engine(Protocol):
    """Averages, clips and steps."""

    module: nn.Module
    """For forward passes that are differentiated."""

    shards_weights: bool
    """Whether a forward pass needs all ranks, because each holds a part of the weights."""

    def backward(self, loss: Tensor, last: bool) -> None:
        """Accumulate gradients of the sum over ranks and calls; `last` before a step."""
        ...

    def accumulate(self, last: bool) -> AbstractContextManager[Any]:
        """Around the forward and backward of one call."""
        ...

    def step(self, learning_rate: float) -> float:
        """Clip, update, clear gradients; return the gradient norm before clipping."""
        ...

    def optimizer_state(self, wanted: bool = True) -> OptimizerState:
        """Collective: the full state; where it is not wanted, none, which takes no memory."""
        ...

    def load_optimizer_state(self, state: OptimizerState) -> None: ...

    def weights(self, device: torch.device = CPU, wanted: bool = True) -> dict[str, Tensor]:
        """Collective: full trained parameters, copies on `device`; where not wanted, none."""
        ...

    def trained(self) -> AbstractContextManager[Mapping[str, Tensor]]:
        """Collective: inside, full trained parameters themselves, where they are."""
        ...

    def put_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Collective: set what forward passes compute with (not the optimizer's masters)."""
        ...


def make_engine(
    module: nn.Module,
    trainable: Mapping[str, nn.Parameter],
    train: TrainConfig,
    launch: LaunchConfig,
    world: World,
    dtype: Dtype = "float32",
) -> Engine:
    """The engine of launch.engine around `module`, whose weights are already in place.

    Args:
        dtype: what `module` computes in, under the autocast of who calls it.
    """
    # A kernel for all moments and weights, where the usual update makes copies on the way.
    optimizer = make_optimizer(trainable, train, fused=all(x.is_cuda for x in trainable.values()))
    if launch.engine == "deepspeed":
        return DeepSpeedEngine(module, trainable, optimizer, train, launch, dtype)
    # The gradients of float16 would be too small for it.
    return DdpEngine(module, trainable, optimizer, train, world, scale_loss=dtype == "float16")


def make_optimizer(
    trainable: Mapping[str, nn.Parameter], train: TrainConfig, fused: bool
) -> torch.optim.AdamW:
    """AdamW of the trained parameters. fused: by torch's own kernel, on any device."""
    return torch.optim.AdamW(
        list(trainable.values()),
        lr=train.learning_rate,
        betas=train.adam_betas,
        eps=train.adam_epsilon,
        weight_decay=train.weight_decay,
        fused=fused,
    )


class DdpEngine:
    """torch DistributedDataParallel; nothing around the module in a world of one."""

    shards_weights = False

    def __init__(
        self,
        module: nn.Module,
        trainable: Mapping[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        train: TrainConfig,
        world: World,
        scale_loss: bool = False,
    ) -> None:
        self._trainable = trainable
        self._optimizer = optimizer
        self._max_grad_norm = train.max_grad_norm
        self._world_size = world.size
        self._scaler = torch.amp.GradScaler(world.device.type, enabled=scale_loss)
        self.module: nn.Module = module
        if world.size > 1:
            with warnings.catch_warnings():
                # The only buffer is a constant table. The option's successor came with torch 2.14.
                warnings.filterwarnings("ignore", "`broadcast_buffers`", FutureWarning)
                self.module = nn.parallel.DistributedDataParallel(
                    module, process_group=world.group, broadcast_buffers=False
                )
            self._settle_buckets(module)

    def _settle_buckets(self, module: nn.Module) -> None:
        """Collective: have DDP lay out its buckets for good, by a pass that changes no weight.

        DDP does so once, by the order in which its first backward pass makes gradients. With more
        than two ranks, the last bits of a sum depend on where in a bucket a gradient lies: the
        first update of a resumed run would differ from that of an undisturbed one.
        """
        parameters = list(self._trainable.values())
        vars(module)["forward"] = lambda: torch.stack([one.sum() for one in parameters]).sum()
        try:
            self.module().backward()
        finally:
            del vars(module)["forward"]  # from here on its class's again
        self._optimizer.zero_grad(set_to_none=True)

    def accumulate(self, last: bool) -> AbstractContextManager[Any]:
        if isinstance(self.module, nn.parallel.DistributedDataParallel) and not last:
            return self.module.no_sync()
        return nullcontext()

    def backward(self, loss: Tensor, last: bool) -> None:
        loss = loss * self._world_size  # DDP averages over ranks; the loss is already a share
        self._scaler.scale(loss).backward()

    def step(self, learning_rate: float) -> float:
        """See Engine. Where float16 overflowed there is no update, and the norm of none is 0."""
        set_learning_rate(self._optimizer, learning_rate)
        self._scaler.unscale_(self._optimizer)
        parameters = list(self._trainable.values())
        norm = float(nn.utils.clip_grad_norm_(parameters, self._max_grad_norm))
        if math.isfinite(norm) or self._scaler.is_enabled():  # a scaler skips overflows by itself
            self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        if self._scaler.is_enabled() and not math.isfinite(norm):
            self._require_scale()
            return 0.0
        return norm

    def _require_scale(self) -> None:
        """An overflow halves the scale, and is no accident where that has become useless."""
        if self._scaler.get_scale() < 1:
            raise Stopped(
                "policy.dtype: gradients overflow float16 at every scale: the loss is not finite, "
                "or training diverged; begin a new run with bfloat16, or with a lower "
                "train.learning_rate"
            )

    def optimizer_state(self, wanted: bool = True) -> OptimizerState:
        if not wanted:
            return OptimizerState(0, {})
        updates, moments = 0, {}
        for name, parameter in self._trainable.items():
            state = self._optimizer.state[parameter]
            if state:
                updates = int(state["step"])
                moments[name] = {kind: state[kind].detach().to(CPU, copy=True) for kind in MOMENTS}
        return OptimizerState(updates, moments, self._scaler.state_dict())

    def load_optimizer_state(self, state: OptimizerState) -> None:
        if state.scaler:
            self._scaler.load_state_dict(dict(state.scaler))
        for name, moments in state.moments.items():
            parameter = self._trainable[name]
            self._optimizer.state[parameter] = {
                "step": _count(state.updates, self._optimizer, parameter),
                **{kind: moments[kind].to(parameter.device, copy=True) for kind in MOMENTS},
            }

    def weights(self, device: torch.device = CPU, wanted: bool = True) -> dict[str, Tensor]:
        return copies(self._trainable, device) if wanted else {}

    def trained(self) -> AbstractContextManager[Mapping[str, Tensor]]:
        return nullcontext(self._trainable)

    def put_weights(self, weights: Mapping[str, Tensor]) -> None:
        put_weights(self._trainable, weights)


class DeepSpeedEngine:
    """DeepSpeed ZeRO-2 or ZeRO-3 in float32, configured by a file of configs/deepspeed."""

    def __init__(
        self,
        module: nn.Module,
        trainable: Mapping[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        train: TrainConfig,
        launch: LaunchConfig,
        dtype: Dtype = "float32",
    ) -> None:
        import deepspeed

        # Or DeepSpeed compiles it, on CPUs, for a minute, where gloo sums as well.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        self._deepspeed = deepspeed
        self._trainable = trainable
        self._stage = launch.zero_stage
        self.shards_weights = launch.zero_stage == 3
        config = read_deepspeed_config(deepspeed_file(launch), train)
        if dtype != "float32":
            config["torch_autocast"] = autocast_section(dtype)
        engine, _, _, _ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
        self._engine = engine
        self.module: nn.Module = engine
        self._world_size = torch.distributed.get_world_size()

    def accumulate(self, last: bool) -> AbstractContextManager[Any]:
        self._engine.set_gradient_accumulation_boundary(last)
        return nullcontext()

    def backward(self, loss: Tensor, last: bool) -> None:
        self._engine.backward(loss * self._world_size)

    def step(self, learning_rate: float) -> float:
        set_learning_rate(self._engine.optimizer, learning_rate)
        self._engine.step()
        return float(self._engine.get_global_grad_norm())

    # The flat partitions hold the state; DeepSpeed's safe_* functions address it by parameter.

    def _flat_state(self) -> list[dict[str, Any]]:
        inner = self._engine.optimizer.optimizer
        return [inner.state[part] for part in self._partitions()]

    def _partitions(self) -> list[Tensor]:
        zero = self._engine.optimizer
        if self._stage == 3:
            return list(zero.fp32_partitioned_groups_flat)
        return list(zero.single_partition_of_fp32_groups)

    def optimizer_state(self, wanted: bool = True) -> OptimizerState:
        from deepspeed.utils import safe_get_full_optimizer_state

        states = self._flat_state()
        if not all(states):
            return OptimizerState(0, {})
        moments: dict[str, dict[str, Tensor]] = {}
        for name, parameter in self._trainable.items():
            for kind in MOMENTS:
                value = safe_get_full_optimizer_state(parameter, kind)  # needs all ranks
                if wanted:
                    moments.setdefault(name, {})[kind] = value.detach().cpu().clone()
        return OptimizerState(int(states[0]["step"]), moments)

    def load_optimizer_state(self, state: OptimizerState) -> None:
        inner = self._engine.optimizer.optimizer
        for partition in self._partitions():
            inner.state[partition] = {
                "step": _count(state.updates, inner, partition),
                **{kind: torch.zeros_like(partition) for kind in MOMENTS},
            }
        if self._stage != 3:
            # ZeRO-2 finds a parameter's moments once they exist, and looks after its first step.
            self._engine.optimizer._lazy_init_hp_params_optimizer_state()
        for name, moments in state.moments.items():
            for kind in MOMENTS:
                self._put_moment(self._trainable[name], moments[kind], kind)

    def _put_moment(self, parameter: nn.Parameter, value: Tensor, kind: str) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

        value = value.to(parameter.device)
        if self._stage != 3:
            safe_set_full_optimizer_state(parameter, value, kind)
            return
        # ZeRO-3 pads a parameter to a multiple of the world size, which its full setter forgets.
        size = -(-value.numel() // self._world_size)
        padded = value.new_zeros(size * self._world_size)
        padded[: value.numel()] = value.flatten()
        rank = torch.distributed.get_rank()
        safe_set_local_optimizer_state(parameter, padded[rank * size : (rank + 1) * size], kind)

    def _whole(self, modifier_rank: int | None) -> AbstractContextManager[Any]:
        """Inside, every rank sees full parameters; with a modifier its changes are kept."""
        if self._stage != 3:
            return nullcontext()
        parameters = list(self._trainable.values())
        return self._deepspeed.zero.GatheredParameters(parameters, modifier_rank=modifier_rank)

    def weights(self, device: torch.device = CPU, wanted: bool = True) -> dict[str, Tensor]:
        with self._whole(None):
            return copies(self._trainable, device) if wanted else {}

    @contextmanager
    def trained(self) -> Iterator[Mapping[str, Tensor]]:
        with self._whole(None):
            yield self._trainable
            if self.shards_weights and torch.cuda.is_available():
                torch.cuda.current_stream().synchronize()  # what is gathered is freed behind this

    def put_weights(self, weights: Mapping[str, Tensor]) -> None:
        with self._whole(0):
            put_weights(self._trainable, weights)


def set_learning_rate(optimizer: Any, rate: float) -> None:
    """For the next update of a torch optimizer, or of one of DeepSpeed's around it."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def _count(updates: int, optimizer: torch.optim.Optimizer, parameter: Tensor) -> Tensor:
    """Updates as AdamW counts them: where the parameter is if it is fused, else on the CPU."""
    fused = optimizer.param_groups[0]["fused"]
    return torch.tensor(float(updates), device=parameter.device if fused else "cpu")


def deepspeed_file(launch: LaunchConfig) -> Path:
    """zero2.json, or of ZeRO-3 zero3_offload.json where the optimizer lies in main memory,
    zero3_sd3.json as launch.zero_tuning says, and else zero3.json."""
    name = f"zero{launch.zero_stage}"
    if launch.offload:
        name += "_offload"
    elif launch.zero_stage == 3 and launch.zero_tuning != "general":
        name += f"_{launch.zero_tuning}"
    return repository_root() / "configs" / "deepspeed" / f"{name}.json"


def autocast_section(dtype: Dtype) -> dict[str, Any]:
    """What keeps DeepSpeed from ending the caller's autocast at its door, as it does on GPUs.

    Without it the weights are trained in float32, by another function than the one that sampled.
    No module is named whose gradients it would then sum in 16 bits.
    """
    return {"enabled": True, "dtype": dtype, "lower_precision_safe_modules": []}


def read_deepspeed_config(path: Path, train: TrainConfig) -> dict[str, Any]:
    """The JSON file, with what the run decides filled in. Batch sizes are ours, not DeepSpeed's:
    accumulation boundaries are set by hand, so it is told 1 and 1."""
    config: dict[str, Any] = json.loads(path.read_text())
    config["train_micro_batch_size_per_gpu"] = 1
    config["gradient_accumulation_steps"] = 1
    config["gradient_clipping"] = train.max_grad_norm
    return config
