"""What of an export depends on the family of the policy (policy.family)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from torch import Tensor

from atelier.config.schema import RunConfig
from atelier.config.sections.policy import LoraConfig
from atelier.data.prompts import Prompt
from atelier.errors import CheckpointError
from atelier.export.base import BaseModel
from atelier.export.record import ExportRecord, Format
from atelier.export.reference import Reference

FAMILIES = ("sd3", "deepgen", "janus", "qwen")


@dataclass(frozen=True)
class Family:
    """One family: <name>/family.py, and its part of the clean process, clean_process/of_<name>.py.

    Attributes:
        name: as policy.family has it.
        library: what loads a merged export.
        adapter_library: what loads an adapter into the base.
        base: the kind of model that a run starts from.
        reference: what an export must reproduce.
        make_reference: (config, tensors, prompts, device) -> what the trainer's policy makes of the
            prompts, with the trained tensors (by the trainer's names) and without.
        write_adapter: (base, layers, lora, directory) writes an adapter as the family's library
            loads it, layers `<module>.lora_A.weight` and B by names of the base. Raises
            ConfigError: the base can have no adapter.
        check_adapter: (directory, record) holds an adapter's keys and settings against the record,
            without loading the base. Raises CheckpointError: what the library would load wrongly,
            and pass over.
        loading_lines: (record, base, reference) -> Python that loads the export and generates an
            image, for the model card.
        prefixes: how the trainer's names of tensors begin, and how the base's do instead.
    """

    name: str
    library: str
    adapter_library: str
    base: type[BaseModel]
    reference: type[Reference]
    make_reference: Callable[[RunConfig, Mapping[str, Tensor], Sequence[Prompt], str], Reference]
    write_adapter: Callable[[BaseModel, Mapping[str, Tensor], LoraConfig, Path], None]
    check_adapter: Callable[[Path, ExportRecord], None]
    loading_lines: Callable[[ExportRecord, BaseModel, Reference], Sequence[str]]
    prefixes: Mapping[str, str] = field(default_factory=lambda: {"": ""})

    def loads(self, kind: Format) -> str:
        """The library that loads a format."""
        return self.library if kind == "merged" else self.adapter_library

    def base_names(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Trained tensors by the base's names instead of the trainer's.

        Raises:
            CheckpointError: one is not of this family's module.
        """
        return {self._base_name(name): tensor for name, tensor in tensors.items()}

    def _base_name(self, name: str) -> str:
        for own, base in self.prefixes.items():
            if name.startswith(own):
                return base + name.removeprefix(own)
        raise CheckpointError(
            f"trained tensor {name}: not of a policy of family {self.name}, whose names begin with "
            f"{' or '.join(self.prefixes)}: the checkpoint is of another configuration"
        )


def family_of(name: str) -> Family:
    """The family of that name; its libraries are imported here.

    Raises:
        CheckpointError: there is none.
    """
    if name not in FAMILIES:
        raise CheckpointError(f"exports of family {name!r} are unknown to this version of Atelier")
    family: Family = import_module(f"atelier.export.{name}.family").FAMILY
    return family
