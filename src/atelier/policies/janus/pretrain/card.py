"""Model card of the embedded model, from its record."""

# ruff: noqa: E501 - a table row cannot be wrapped

from __future__ import annotations

from typing import Any

from atelier.policies.janus.pretrain.options import Options
from atelier.policies.pretraining.options import command
from atelier.policies.pretraining.snapshots import RECORD, SAMPLES

MODULE = "atelier.policies.janus.pretrain"

CARD = """---
library_name: transformers
pipeline_tag: any-to-any
license: apache-2.0
---
# Tiny Janus

A `JanusForConditionalGeneration` of 64x64 pictures that is small enough to post-train on a laptop's CPU:
real classes, synthetic world, no download. It draws coloured shapes, judges what it drew, draws again,
edits, and answers questions about pictures; training stopped early on purpose, so that reinforcement
learning has room.

```python
from transformers import JanusForConditionalGeneration, JanusProcessor

model = JanusForConditionalGeneration.from_pretrained("assets/tiny-janus")
processor = JanusProcessor.from_pretrained("assets/tiny-janus")
prompt = "<|User|>: two red circles and one blue square\\n\\n<|Assistant|>:"
inputs = processor(text=[prompt], generation_mode="image", return_tensors="pt")
tokens = model.generate(
    **inputs, generation_mode="image", do_sample=True, top_k=0, guidance_scale=5.0
)
pixels = model.decode_image_tokens(tokens)  # [1, 64, 64, 3], about -1 to 1
```

Atelier draws with `atelier.policies.janus.sampling`, which also draws after images. What the model reads
before it draws, judges or edits is built by `atelier.policies.janus.conversation`; other words mean
nothing to it, nor do prompts outside the scene world (`atelier.data.scenes.prompt`, `atelier.data.edits`,
`atelier.data.questions`) or words written in pictures.

## Parts
| part | what it is |
|---|---|
| language_model | Llama, {layers} layers, width {width}, {heads} heads, text embedding tied to the text head; {language_model} parameters |
| vqmodel | 64x64x3 to 8x8 codes of {codes} and back; trained first, frozen; {vqmodel} parameters |
| vision_model, aligner | SigLIP type, patch 8, 64 tokens an image; {vision} parameters |
| generation_embeddings, _aligner, _head | codes in and out; {generation} parameters |
| tokenizer | bytes, and each word of the scene world as one token, with and without a space before it; marks as in Janus-Pro |

{all} parameters. Weights are stored in float16; a plain `from_pretrained` loads float32 (`config.json` says
so), `dtype=torch.float16` gives them as they are. The rows of the codebook have length 1, so that encoding,
which does not normalise, finds the same codes as an encoding that does.

## How it was made
```
{command}
python -m {module} promote DIR/SNAPSHOT assets/tiny-janus
```
{images} images of {cases} scenes of the training split, of one that differs in one fact from each, and of
an edit of each. The image tokenizer first, {vq}; then {step} steps of {batch} conversations each in
{seconds} s on {device} (torch {torch}). The weights are their moving average. Later snapshots of the run draw
better, {best} at the end of the curve: this one was chosen for the room it leaves. `{record}` holds every option,
the curve and all that was measured; `{samples}` shows held-out prompts. GPU kernels are not
bit-reproducible: a rerun gives a sibling, not a twin.

## What it can do
Held-out scenes, whose combinations of kinds and numbers training never shows, temperature 1; the gold check
decides, all facts of a scene have to be right. In the run on the GPU ({heldout} scenes), and once more on a
CPU with {measured} other scenes:

| | GPU | CPU |
|---|---|---|
{rows}

A judgement's balanced accuracy is the mean over pictures that show the prompt and pictures that do not:
renders of the scene and of one that differs in one fact, or its own drawings. "Drawn again after its own No" counts
first drawings that it refuses in its own words; "right in the end" is what comes of drawing, judging and,
where it says No, drawing again.

## Licence
Weights, pictures and texts come from this repository's own generator and are under its licence. The classes
are those of transformers (Apache 2.0). No third-party weights or data went in.
"""

# Name, and where its number is found in a measurement.
ROWS = (
    ("drawing, guidance 5", ("draw", "cfg 5")),
    ("drawing, guidance 3", ("draw", "cfg 3")),
    ("drawing, no guidance", ("draw", "cfg 1")),
    ("judging renders, balanced accuracy", ("judge", "renders")),
    ("judging its own drawings, balanced accuracy", ("judge", "own")),
    ("judging a wrong render: the reason, word by word", ("judge", "reasons")),
    ("yes/no questions about a render", ("ask", "all")),
    ("yes/no questions about positions alone", ("ask", "position")),
    ("drawing again after a wrong render and the right verdict, guidance 5", ("redraw",)),
    ("drawn again after its own No, guidance 5", ("introspect", "redrawn")),
    ("right in the end", ("introspect", "final")),
    ("editing, guidance 5: instruction followed", ("edit", "following")),
    ("editing: share of the rest that is preserved", ("edit", "preserving")),
    ("editing: followed and all preserved", ("edit", "both")),
    ("true renders after the image tokenizer", ("ceiling", "round_trip")),
)


def card(record: dict[str, Any]) -> str:
    """The text of README.md for a snapshot's record with its measurement."""
    options, chosen, parts = record["options"], record["snapshot"], record["parameters"]
    trained = {**chosen, "ceiling": record["ceiling"]}
    tasks = ("draw", "judge", "ask", "describe", "redraw", "edit")
    return CARD.format(
        **{
            name: options[name]
            for name in ("layers", "width", "heads", "codes", "cases", "heldout")
        },
        language_model=_millions(parts["language_model"]),
        vqmodel=_millions(parts["vqmodel"]),
        vision=_millions(parts["vision_model"] + parts["aligner"]),
        generation=_millions(
            sum(parts[f"generation_{x}"] for x in ("embeddings", "aligner", "head"))
        ),
        all=_millions(parts["all"]),
        command=command(MODULE, Options, options, leave_out=("vq",)),
        module=MODULE,
        images=3 * options["cases"],
        vq=_tokenizer(record["vq"]),
        best=_number(record["curve"][-1], ("draw", "cfg 5")),
        step=chosen["step"],
        batch=sum(options[task] for task in tasks),
        seconds=round(chosen["seconds"]),
        device=record["device"],
        torch=record["torch"],
        record=RECORD,
        samples=SAMPLES,
        measured=record["measured"]["heldout"],
        rows="\n".join(
            f"| {name} | {_number(trained, path)} | {_number(record['measured'], path)} |"
            for name, path in ROWS
        ),
    )


def _tokenizer(made: dict[str, Any]) -> str:
    """How the image tokenizer was trained."""
    before = made.get("from")
    own = f"{made['steps']} steps in {made['seconds']:.0f} s" if "steps" in made else "as it was"
    if before is None:
        return own
    return f"{_tokenizer(before)} in an earlier run of the command, then (`--vq`) {own}"


def _number(measured: dict[str, Any], path: tuple[str, ...]) -> str:
    value: Any = measured
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return "" if value is None else f"{value:.3f}"


def _millions(count: int) -> str:
    return f"{count / 1e6:.2f} M"
