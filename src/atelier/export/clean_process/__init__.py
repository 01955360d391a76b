"""Reload exported directories the way a user does, and compute from them what is compared.

    python -I clean_process/ jobs.json outcomes.json

This folder is run by a fresh interpreter and imports nothing of atelier, so what it proves holds
for anybody who has only torch and the library that loads the family: diffusers for sd3,
transformers and peft for janus. One file a family (of_<family>.py), with the same three functions:

    load(job)                   the model as a user loads it
    trained_part(model, kind)   {name: tensor} of what arrived of the weights, and the LoRA's scales
    reproduce(model, file)      {name: array} of what a reference (verification/) is compared with
"""
