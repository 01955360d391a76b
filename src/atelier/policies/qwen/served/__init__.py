"""Completions drawn by vLLM servers, by the trained weights.

`files` lays out the encoder as vLLM reads it; `server` asks one server; `weights` is how trained
weights get there, and how it is known that they answered; `probe` holds the two programs' numbers
against each other; `sampler` does all of that for a policy. Imported by the trainer alone.
"""
