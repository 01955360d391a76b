"""Opening a Janus checkpoint: whatever is wrong with it is told before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    JanusForConditionalGeneration,
    JanusProcessor,
    PreTrainedConfig,
)
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from atelier.config.theirs import JANUS_PAGE
from atelier.errors import ConfigError
from atelier.model_files import (
    quietly,
    read_weights,
    require_all_weights,
    require_files_of_kind,
    require_no_others,
    require_numbers,
    require_weights_of_kind,
    tell_of_others,
    telling,
    told,
)
from atelier.policies.janus.checks import boi_of, require_tokens, require_whole
from atelier.policies.janus.original_layout import in_transformers_layout
from atelier.policies.janus.pixels import normalise_codebook
from atelier.policies.language.vocabulary import require_known_tokens


@dataclass(frozen=True)
class Checkpoint:
    """A model in eval mode, and its processor."""

    model: JanusForConditionalGeneration
    processor: JanusProcessor


def load(
    path: str | Path,
    revision: str | None = None,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    weights: str | Path | None = None,
) -> Checkpoint:
    """A checkpoint in the layout of transformers, on the CPU.

    The image tokenizer stays in float32, for rewards see what it decodes, and the rows of its
    codebook get length 1 (see pixels.normalise_codebook).

    Args:
        path: directory, or hub id (then HF_HUB_OFFLINE and the hub's cache apply).
        revision: commit, tag or branch of a hub id.
        dtype: what the rest is held in.
        weights: a file of torch.save with weights to start from instead of the checkpoint's own, in
            the layout of transformers or in the original one, such as a post-SFT `.pth`.

    Raises:
        ConfigError: there is no such checkpoint, it is no Janus, it is damaged or incomplete, its
            weights are no numbers, or its parts do not fit together.
    """
    where = f"{path} at revision {revision}" if revision else str(path)
    with _telling(where):
        facts, _ = PreTrainedConfig.get_config_dict(path, revision=revision)
    _require_janus(where, facts)
    with _telling(where), quietly(transformers_logging):
        processor = JanusProcessor.from_pretrained(path, revision=revision)
        model, info = JanusForConditionalGeneration.from_pretrained(
            path,
            revision=revision,
            dtype="auto",  # as it is in the files, so that nothing is rounded twice
            attn_implementation="sdpa",
            output_loading_info=True,
        )
    _hold_in(model, getattr(torch, dtype))
    if weights is None:
        require_all_weights(where, info["missing_keys"])
        tell_of_others(where, info["unexpected_keys"])
        require_files_of_kind(_folder(path, revision), model.state_dict())
    else:
        _replace_weights(model, Path(weights))
    require_numbers(str(weights or where), model.state_dict())
    require_tokens(where, processor.tokenizer)
    require_known_tokens(where, processor.tokenizer, model.config.text_config.vocab_size)
    require_whole(where, model.config, processor)
    normalise_codebook(model.model.vqmodel.quantize.embedding)
    model.generation_config = generation_config(model.generation_config, processor.tokenizer)
    return Checkpoint(model.eval(), processor)


def generation_config(known: GenerationConfig, tokenizer: Any) -> GenerationConfig:
    """What `generate(generation_mode="image")` needs: the marks of the tokenizer.

    A fresh object: values set on the one that is made from a model's config are not saved.
    """
    return GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        guidance_scale=known.guidance_scale,
        generation_kwargs={"boi_token_id": boi_of(tokenizer)},
    )


def _require_janus(where: str, facts: Mapping[str, Any]) -> None:
    kind = facts.get("model_type")
    if kind == "multi_modality":
        raise ConfigError(
            f"{where}: is in the original layout of Janus; name the same model as converted to "
            "transformers (model_type janus), and give this one's weights as `weights`: a file, "
            f"which a folder becomes by the lines in {JANUS_PAGE}, Checkpoints"
        )
    if kind != "janus":
        raise ConfigError(f"{where}: is no Janus: its config.json says model_type {kind!r}")


def _folder(path: str | Path, revision: str | None) -> Path:
    """Where the files of a checkpoint that was loaded are."""
    return Path(str(cached_file(path, "config.json", revision=revision))).parent


def _hold_in(model: JanusForConditionalGeneration, dtype: torch.dtype) -> None:
    for name, part in (*model.model.named_children(), ("lm_head", model.lm_head)):
        part.to(torch.float32 if name == "vqmodel" else dtype)


# Weights of another file ------------------------------------------------------------------------


def _replace_weights(model: JanusForConditionalGeneration, file: Path) -> None:
    """Put a file's weights into the model, all of them.

    Raises:
        ConfigError: it cannot be read, or does not have every weight in the model's shapes.
    """
    found = read_weights(file)
    with _telling(str(file)):
        found = in_transformers_layout(found)
    require_weights_of_kind(str(file), found, model.state_dict())
    _untie_where_they_differ(model, found)
    try:
        result = model.load_state_dict(found, strict=False)
    except RuntimeError as error:  # shapes
        raise ConfigError(f"{file}: does not fit the checkpoint's config: {told(error)}") from error
    tied = set(getattr(model, "all_tied_weights_keys", ()))
    require_all_weights(str(file), set(result.missing_keys) - tied)
    require_no_others(str(file), result.unexpected_keys)


def _untie_where_they_differ(
    model: JanusForConditionalGeneration, found: Mapping[str, Tensor]
) -> None:
    """A config may say that the text head shares the embedding's weights (it is the default), and
    be wrong: the weights know. Two names of one tensor would end with the values of the last."""
    head, embedding = model.lm_head, model.model.language_model.embed_tokens
    theirs = found.get("lm_head.weight")
    table = found.get("model.language_model.embed_tokens.weight")
    if head.weight is not embedding.weight or theirs is None or table is None:
        return
    if not torch.equal(theirs, table):
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        model.config.tie_word_embeddings = False


# Telling ----------------------------------------------------------------------------------------


def _telling(where: str) -> AbstractContextManager[None]:
    return telling(f"{where}: cannot be loaded as Janus")
