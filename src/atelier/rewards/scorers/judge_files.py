"""The files of weights of a judge that is asked in this process."""

from __future__ import annotations

from pathlib import Path

from atelier.config.paths import from_root
from atelier.errors import ConfigError

_KINDS = ("*.safetensors", "*.bin")  # as transformers prefers them


def weight_files(model: str) -> list[Path]:
    """In a fixed order, of a directory or of the snapshot that the hub's cache has.

    Raises:
        ConfigError: there are none here.
    """
    folder = _folder(model)
    found = [sorted(folder.glob(kind)) for kind in _KINDS] if folder is not None else []
    files = next((one for one in found if one), None)
    if files is None:
        raise ConfigError(f"judge {model}: its weights are not on this machine")
    return files


def _folder(model: str) -> Path | None:
    local = from_root(model)
    if local.is_dir():
        return local
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        return None
