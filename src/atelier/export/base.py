"""The model that was trained from: a directory whose trained part is held in safetensors.

Families differ in where its weights lie and in what else belongs to the directory; what is done
with the weights is the same for all.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import torch
import yaml
from safetensors import safe_open

from atelier.config.paths import from_root, is_directory
from atelier.config.schema import RunConfig
from atelier.errors import ConfigError
from atelier.export.manifest import file_sha256
from atelier.weight_index import places_in

TOP_LEVEL_FILES = ("LICENSE*", "LICENCE*", "NOTICE*")
CARD, BASE_CARD = "README.md", "BASE_README.md"


@dataclass(frozen=True)
class BaseModel(ABC):
    """A model directory of one family.

    Attributes:
        path: what the configuration called it (directory or hub id).
        directory: where it is.
        is_local: whether `path` is a directory's.
    """

    path: str
    directory: Path
    is_local: bool

    family: ClassVar[str]
    kind: ClassVar[str]
    """What the directory is, in messages."""
    weights_name: ClassVar[str]
    """Name of the file of weights where they are not sharded."""
    trained_part: ClassVar[str]
    """What the weights are of, in messages."""

    # Finding it --------------------------------------------------------------------------------

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """The base a run starts from. Raises ConfigError as `open` does."""
        return cls.open(config.policy.path, config.policy.revision)

    @classmethod
    def open(cls, path: str, revision: str | None = None) -> Self:
        """Find a base: a directory, else a hub id (from the local cache when offline).

        Args:
            path: directory (absolute, or relative to the repository) or hub id.
            revision: of a hub id, its commit, tag or branch.

        Raises:
            ConfigError: neither, or of another kind.
        """
        return cls.local(path) or cls._at(path, cls._from_hub(path, revision), is_local=False)

    @classmethod
    def local(cls, path: str) -> Self | None:
        """The base in the directory at `path`, which may be relative to the repository; None: no
        such directory.

        Raises:
            ConfigError: a directory, but of another kind.
        """
        places = (Path(path), from_root(path))
        directory = next((one for one in places if is_directory(one)), None)
        return cls._at(path, directory, is_local=True) if directory else None

    @classmethod
    def _at(cls, path: str, directory: Path, is_local: bool) -> Self:
        base = cls(path, directory.resolve(), is_local)
        base.require_kind()
        return base

    @classmethod
    def _from_hub(cls, path: str, revision: str | None) -> Path:
        try:
            return cls.download(path, revision)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"policy.path: {path} is neither a directory nor a {cls.kind} of the hub that can "
                f"be reached from here: {error}"
            ) from error

    @staticmethod
    @abstractmethod
    def download(path: str, revision: str | None) -> Path:
        """Fetch a model of the hub. Raises OSError or ValueError: it cannot be had."""

    @abstractmethod
    def require_kind(self) -> None:
        """Raise ConfigError unless the directory is a model of this family."""

    # What differs between families -------------------------------------------------------------

    @property
    @abstractmethod
    def task(self) -> str:
        """What the hub says such models do."""

    @property
    @abstractmethod
    def weights_folder(self) -> Path:
        """Where the weights lie, relative to the directory."""

    @abstractmethod
    def copy_rest(self, target: Path, dtype: torch.dtype) -> None:
        """Copy all that belongs to the model but its weights.

        Args:
            dtype: that the weights will be saved in.
        """

    def loaded_name(self, stored: str) -> str:
        """The name that the loaded model has for a stored tensor; every other name here is such."""
        return stored

    def adaptable(self) -> Iterable[str]:
        """Names of the tensors that a LoRA may adapt."""
        return self.tensor_shapes()

    def tied(self) -> Mapping[str, str]:
        """Stored tensors that are only another name of one (name -> that one's name)."""
        return {}

    @property
    def stays_beside(self) -> bool:
        """Whether a merged export is loaded together with the base, and holds not all of it."""
        return False

    def frozen(self) -> Mapping[str, str]:
        """Digest (clean_process/digests.py) of each part that is loaded beside the trained one, as
        it is loaded, where an export has to show that it is the base's."""
        return {}

    # Weights -----------------------------------------------------------------------------------

    @property
    def index_name(self) -> str:
        """Of the file that says which shard holds what."""
        return _index_of(self.weights_name)

    @property
    def _weights(self) -> Path:
        return self.directory / self.weights_folder

    def weight_files(self) -> list[Path]:
        """The safetensors: one file, or the shards its index names.

        Raises:
            ConfigError: neither is there (weights as pickles, or of a variant only).
        """
        return safetensors_of(self._weights, self.weights_name, self.trained_part)

    def names(self, file: Path) -> list[str]:
        """Stored names of the tensors of one weight file."""
        with safe_open(file, framework="pt") as opened:
            return list(opened.keys())

    def tensors(self, file: Path) -> Iterator[tuple[str, torch.Tensor]]:
        """(stored name, tensor as stored) of one weight file."""
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  (not a mapping)
                yield name, opened.get_tensor(name)

    def stored(self, *names: str) -> dict[str, torch.Tensor]:
        """Those of the tensors that there are."""
        found = {}
        for file in self.weight_files():
            with safe_open(file, framework="pt") as opened:
                for stored in opened.keys():  # noqa: SIM118  (not a mapping)
                    if (name := self.loaded_name(stored)) in names:
                        found[name] = opened.get_tensor(stored)
        return found

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor of the trained part, read from the headers."""
        shapes = {}
        for file in self.weight_files():
            with safe_open(file, framework="pt") as opened:
                for stored in opened.keys():  # noqa: SIM118
                    name = self.loaded_name(stored)
                    shapes[name] = tuple(opened.get_slice(stored).get_shape())
        return shapes

    def weights_sha256(self) -> str:
        """One sha256 over the weight files: which base this is."""
        digest = hashlib.sha256()
        for file in self.weight_files():
            digest.update(f"{file.name} {file_sha256(file)}\n".encode())
        return digest.hexdigest()

    # Licence -----------------------------------------------------------------------------------

    def licence(self) -> str | None:
        """The `license` of the base's model card, if it states one."""
        try:
            card = (self.directory / CARD).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        parts = card.split("---\n", 2)
        if len(parts) < 3 or parts[0].strip():
            return None
        try:
            front = yaml.safe_load(parts[1])
        except yaml.YAMLError:
            return None
        licence = front.get("license") if isinstance(front, dict) else None
        return str(licence) if licence else None


def safetensors_of(folder: Path, name: str, part: str) -> list[Path]:
    """The one file of that name, or the shards that its index names.

    Args:
        part: what the weights are of, in messages.

    Raises:
        ConfigError: neither is there (weights as pickles, or of a variant only), or the index is
            none.
    """
    if (single := folder / name).exists():
        return [single]
    index = folder / _index_of(name)
    if not index.exists():
        raise ConfigError(
            f"policy.path: {folder} holds neither {name} nor {index.name}: export needs the base's "
            f"{part} as safetensors"
        )
    return sorted({*places_in(index).values()})


def _index_of(name: str) -> str:
    return f"{name}.index.json"
