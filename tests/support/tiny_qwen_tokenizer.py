"""Cuts the tokenizer of the embedded pipelines out of the published one.

python -m tests.support.tiny_qwen_tokenizer FOLDER ...
"""

from __future__ import annotations

import sys

from atelier.policies.qwen.tiny.tokenizer import cut_tokenizer
from tests.support.qwen_vocabulary import published_tokenizer

if __name__ == "__main__":
    for folder in sys.argv[1:]:
        cut_tokenizer(published_tokenizer()).save_pretrained(folder)
