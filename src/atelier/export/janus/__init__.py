"""Janus: directories of transformers, adapters of peft, and the original layout."""
