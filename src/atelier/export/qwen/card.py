"""The lines of a model card that write to a prompt and paint from what was written.

They are the functions of the clean process, which proves the export with them, and calls of these.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atelier.export.base import BaseModel
from atelier.export.clean_process import qwen_usage
from atelier.export.qwen.base import BaseQwen
from atelier.export.qwen.reference import WritingReference
from atelier.export.record import ExportRecord
from atelier.export.reference import SOURCE, Reference
from atelier.policies.qwen.areas import Areas

HERE = "path/to/this/directory"
ENCODER = "Qwen2_5_VLForConditionalGeneration.from_pretrained"
USED = (
    qwen_usage.read,
    qwen_usage.write,
    qwen_usage.ended,
    qwen_usage.embeddings,
    qwen_usage.paint,
)


def loading_lines(record: ExportRecord, base: BaseModel, reference: Reference) -> Sequence[str]:
    """See families.Family."""
    assert isinstance(base, BaseQwen)
    assert isinstance(reference, WritingReference)
    functions = "\n\n".join(inspect.getsource(one) for one in USED)
    return [
        *_imports(record, base),
        *("", "", *functions.splitlines(), "", ""),
        *_opened(record, base, reference.settings),
        *_written(base, reference),
        *_painted(record, base, reference),
    ]


def _imports(record: ExportRecord, base: BaseQwen) -> Iterator[str]:
    yield "import torch"
    yield "from diffusers import DiffusionPipeline"
    yield "from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as edit_plus"
    if record.format == "adapter":
        yield "from peft import PeftModel"
    if base.edits:
        yield "from PIL import Image, ImageOps"
    yield "from transformers import GenerationConfig, Qwen2_5_VLForConditionalGeneration"


def _opened(record: ExportRecord, base: BaseQwen, settings: Mapping[str, Any]) -> Iterator[str]:
    """What makes `encoder` and `pipe`."""
    merged = record.format == "merged"
    trained = f'"{HERE}"' if merged else f'"{base.path}"'
    yield from _call("encoder", ENCODER, *_encoder(trained, record.dtype))
    if not merged:
        yield f'adapted = PeftModel.from_pretrained(encoder, "{HERE}")'
    dtypes = ", ".join(f'"{part}": torch.{dtype}' for part, dtype in settings["dtypes"].items())
    frozen = f'"{HERE}"' if merged and base.whole else f'"{base.path}"'
    how = ("text_encoder=encoder", f"dtype={{{dtypes}}}")
    yield from _call("pipe", "DiffusionPipeline.from_pretrained", frozen, *how)
    if settings["adapter"] is not None:
        yield f'pipe.load_lora_weights("{settings["adapter"]}")'
        yield "pipe.fuse_lora()"
        yield "pipe.unload_lora_weights()"
    if settings["scheduler"]:
        other = f"**{settings['scheduler']}"
        yield f"levels = {{**pipe.scheduler.config, {other}}}"
        yield "pipe.scheduler = pipe.scheduler.from_config(levels)"
    yield from (f"pipe.vae.{name} = True" for name, wanted in settings["vae"].items() if wanted)
    seen = settings["seen"]["transformer"]
    if base.edits and seen != Areas().reference:
        yield f"edit_plus.VAE_IMAGE_SIZE = {seen}"


def _written(base: BaseQwen, reference: WritingReference) -> Iterator[str]:
    """What makes `completion`."""
    yield "# The encoder writes to a prompt; an image is painted from what it sees over both."
    settings, call = reference.settings, reference.call
    if base.edits:
        yield f'source = Image.open("{HERE}/{SOURCE}").convert("RGB")  # or a picture of yours'
        yield f"source = ImageOps.fit(source, ({call['width']}, {call['height']}))"
    yield f"before = {settings['before']!r}"
    yield 'skip = len(pipe.tokenizer(before)["input_ids"])  # the transformer never saw these'
    yield f"before += {settings['picture']!r}"
    yield f"after = {settings['after']!r}"
    yield f"prompt = {reference.prompts[0].strip()!r}"
    yield f"inputs = {_read('prompt', base, settings)}"
    how = ("do_sample=True", *_named(settings["writing"]))
    yield from _call("completion", "write", "encoder", "pipe.tokenizer", "inputs", *how)
    yield "print(pipe.tokenizer.decode(completion[0]))"


def _painted(record: ExportRecord, base: BaseQwen, reference: WritingReference) -> Iterator[str]:
    """What makes `image`, and keeps it."""
    guided = reference.call["true_cfg_scale"] > 1
    if guided:
        yield f"nothing = {_read(repr(' '), base, reference.settings)}"
        yield from _negative(record, base)
    yield "embeds = embeddings(encoder, inputs, skip, completion)"
    negative = ("negative",) if guided else ()
    source = ("image=source",) if base.edits else ()
    noise = "generator=torch.Generator().manual_seed(0)"
    how = (*source, noise, *_named(reference.call))
    yield from _call("image", "paint", "pipe", "embeds", *negative, *how)
    yield 'image.save("image.png")'


def _negative(record: ExportRecord, base: BaseQwen) -> Iterator[str]:
    """What makes `negative`: what the encoder saw before it was trained."""
    if record.format == "adapter":
        yield "with adapted.disable_adapter():"
        yield "    negative = embeddings(encoder, nothing, skip)"
        return
    yield from _call("untrained", ENCODER, *_encoder(f'"{base.path}"', "float32"))
    yield "negative = embeddings(untrained.to(pipe.device), nothing, skip)"


def _read(words: str, base: BaseQwen, settings: Mapping[str, Any]) -> str:
    source = f", source, {settings['seen']['encoder']}" if base.edits else ""
    return f"read(pipe, before + {words} + after{source})"


def _encoder(source: str, dtype: str) -> tuple[str, ...]:
    return source, 'subfolder="text_encoder"', f"dtype=torch.{dtype}"


def _named(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value!r}" for name, value in values.items()]


def _call(result: str, function: str, *arguments: str) -> Iterator[str]:
    yield f"{result} = {function}("
    yield from (f"    {one}," for one in arguments)
    yield ")"
