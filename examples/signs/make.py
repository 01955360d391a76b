"""Writes train.txt and test.txt: prompts with a quoted text to paint, for `data.source: ocr_text`.

    python examples/signs/make.py

No text of the held-out file stands in the training file.
"""

from __future__ import annotations

import random
from pathlib import Path

PLACES = [
    "A hand-painted wooden sign above a bakery door that reads {}, warm morning light",
    "A neon sign saying {} in the window of a night café, rain on the pavement",
    "A chalkboard on a small easel with {} written in white chalk, beside a potted fern",
    "A paper coffee cup with {} printed on its sleeve, on a marble table",
    "A road sign at a mountain pass that says {}, snow on the ground",
    "The cover of a linen-bound book titled {}, lying on a windowsill",
    "A brass plate engraved with {} on an old oak door",
    "A film poster with {} in large letters over a stormy sea",
    "A birthday cake with {} piped in blue icing",
    "A train station display showing {} above an empty platform",
    "A postage stamp with a lighthouse and the words {}",
    "A canvas tote bag with {} printed in bold black letters, hanging on a hook",
    "A shop window with {} in gold leaf lettering, seen from the street",
    "A cardboard box stamped {} in a warehouse, dust in a beam of light",
    "A knitted scarf with {} worked into the pattern, folded on a chair",
    "A lighthouse logbook opened at a page headed {}",
    "A skywriting plane has written {} in white smoke across a clear sky",
    "A market stall with a striped awning and a banner saying {}",
    "A museum label reading {} under a glass case with a fossil",
    "A rowing boat called {}, its name painted on the bow, tied to a jetty",
]
FIRST = [
    "Open",
    "Fresh",
    "Quiet",
    "Golden",
    "Northern",
    "Little",
    "Grand",
    "Summer",
    "Winter",
    "Blue",
    "Silver",
    "Morning",
    "Evening",
    "Lost",
    "Hidden",
    "Final",
    "Early",
    "Wild",
    "Old",
    "New",
]
SECOND = [
    "Harbour",
    "Garden",
    "Bread",
    "Records",
    "Coffee",
    "Library",
    "Station",
    "Lantern",
    "Orchard",
    "Books",
    "Tide",
    "Cinema",
    "Market",
    "Mill",
    "Road",
    "Tea",
    "Bridge",
    "Letters",
    "Ferry",
    "House",
]
THIRD = ["", "", "", " 24h", " 1978", " & Sons", " Sale", " Daily", " No. 7", " Here"]
SIZES = {"train.txt": 1024, "test.txt": 256}


def main() -> None:
    rng = random.Random(0)
    texts = [f"{first} {second}{third}" for first in FIRST for second in SECOND for third in THIRD]
    texts = rng.sample(sorted(set(texts)), sum(SIZES.values()))
    for name, count in SIZES.items():
        chosen, texts = texts[:count], texts[count:]
        lines = [rng.choice(PLACES).format(f'"{text}"') + ".\n" for text in chosen]
        Path(__file__).with_name(name).write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
