"""What reading costs, and what the padded width of the recogniser changes.

    python benchmarks/ocr_speed.py [--images 200]

Renders scene words, blurs and dirties them until about half can be read (as a policy's images are
at the start of training), and reads them with the recogniser alone at several padded widths, and
with detection. Times are CPU milliseconds an image on one thread.

Two EPYC cores that were busy with other work:
width 320 40.0 ms, similarity 0.737; 160 20.5, 0.755; 96 14.1, 0.755; 64 11.5, 0.758; 48 9.7,
0.773; with detection 443, 0.650. Larger batches do not help: 9.3 ms an image at 16, width 64.
"""

from __future__ import annotations

import argparse
import random
import time

import numpy as np
from PIL import Image, ImageFilter

from atelier.data.render import render
from atelier.data.scenes import sample_scene
from atelier.rewards.scorers import ocr_engine
from atelier.rewards.scorers.text import exact_match, similarity

WIDTHS = (320, 160, 96, 64, 48)


def degraded_words(count: int) -> tuple[list[Image.Image], list[str]]:
    """Rendered words under blur and noise of random strength, and what they say."""
    rng, noise = random.Random(0), np.random.default_rng(0)
    images, words = [], []
    for _ in range(count):
        scene = sample_scene(rng, "word")
        assert scene.word is not None
        blurred = render(scene, rng).filter(ImageFilter.GaussianBlur(rng.uniform(0, 3.5)))
        pixels = np.asarray(blurred, dtype=np.float64)
        pixels = pixels + noise.normal(0, rng.uniform(0, 60), pixels.shape)
        images.append(Image.fromarray(pixels.clip(0, 255).astype(np.uint8)))
        words.append(scene.word.text)
    return images, words


def measure(name: str, detect: bool, images: list[Image.Image], words: list[str]) -> None:
    engine = ocr_engine._build_engine(detect)
    ocr_engine._engines.by_mode = {detect: engine}
    ocr_engine.read_lines(images[0], detect)
    start = time.process_time()
    read = [[line.text for line in ocr_engine.read_lines(image, detect)] for image in images]
    milliseconds = (time.process_time() - start) / len(images) * 1000
    score = np.mean([similarity(word, lines) for word, lines in zip(words, read, strict=True)])
    exact = np.mean([exact_match(word, lines) for word, lines in zip(words, read, strict=True)])
    print(f"{name:<22} {milliseconds:7.1f} ms   similarity {score:.3f}   exact {exact:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=200)
    images, words = degraded_words(parser.parse_args().images)
    for width in WIDTHS:
        ocr_engine.WHOLE_IMAGE_WIDTH = width
        measure(f"recogniser, width {width}", False, images, words)
    measure("with detection", True, images[:40], words[:40])


if __name__ == "__main__":
    main()
