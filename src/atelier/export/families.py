"""What of an export depends on the family of the policy (policy.family)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from atelier.config.schema import LoraConfig, PolicyConfig, RunConfig
from atelier.data.prompts import Prompt
from atelier.errors import CheckpointError
from atelier.export.base import BaseModel
from atelier.export.record import ExportRecord
from atelier.export.reference import Reference


class Family(ABC):
    """One family. Its part of the clean process is clean_process/of_<name>.py.

    Attributes:
        name: as policy.family has it.
        library: what loads a merged export.
        adapter_library: what loads an adapter into the base.
        pipeline_tag: what the hub says such models do.
        prefix: what the trainer puts before the names of the base's tensors.
    """

    name: ClassVar[str]
    library: ClassVar[str]
    adapter_library: ClassVar[str]
    pipeline_tag: ClassVar[str]
    prefix: ClassVar[str] = ""

    @abstractmethod
    def base_of(self, policy: PolicyConfig) -> BaseModel:
        """The base a run starts from.

        Raises:
            ConfigError: there is none, or it is of another kind.
        """

    @abstractmethod
    def open_base(self, path: str) -> BaseModel:
        """The base at a directory or of a hub id. Raises ConfigError as `base_of` does."""

    @abstractmethod
    def local_base(self, path: str) -> BaseModel | None:
        """The base in a directory; None: no such directory."""

    @abstractmethod
    def make_reference(
        self,
        config: RunConfig,
        tensors: Mapping[str, Tensor],
        prompts: Sequence[Prompt],
        device: str,
    ) -> Reference:
        """What the trainer's policy makes of the prompts, with the trained tensors and without.

        Args:
            tensors: by the trainer's names.
        """

    @abstractmethod
    def load_reference(self, path: Path) -> Reference:
        """Read a reference back. Raises CheckpointError: no such file, or not a reference."""

    @abstractmethod
    def write_adapter(
        self, base: BaseModel, layers: Mapping[str, Tensor], lora: LoraConfig, directory: Path
    ) -> None:
        """Write an adapter as the family's library loads it.

        Args:
            layers: `<module>.lora_A.weight` and B, by names of the base.

        Raises:
            ConfigError: the base can have no adapter.
        """

    @abstractmethod
    def check_adapter(self, directory: Path, record: ExportRecord) -> None:
        """Hold an adapter's keys and settings against the record, without loading the base.

        Raises:
            CheckpointError: what the library would load wrongly, and pass over.
        """

    @abstractmethod
    def loading_lines(
        self, record: ExportRecord, base: BaseModel, reference: Reference
    ) -> Sequence[str]:
        """Python that loads the export and generates an image, for the model card."""

    def base_names(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Trained tensors by the base's names instead of the trainer's.

        Raises:
            CheckpointError: one is not of this family's module.
        """
        if foreign := [name for name in tensors if not name.startswith(self.prefix)]:
            raise CheckpointError(
                f"trained tensor {foreign[0]}: not of a policy of family {self.name}, whose names "
                f"begin with {self.prefix}: the checkpoint is of another configuration"
            )
        return {name.removeprefix(self.prefix): tensor for name, tensor in tensors.items()}


def family_of(name: str) -> Family:
    """The family of that name; its libraries are imported here.

    Raises:
        CheckpointError: there is none.
    """
    if name == "sd3":
        from atelier.export.sd3.family import SD3Family

        return SD3Family()
    if name == "janus":
        from atelier.export.janus.family import JanusFamily

        return JanusFamily()
    raise CheckpointError(f"exports of family {name!r} are unknown to this version of Atelier")
