"""Reload exported directories the way a user does, and compute from them what is compared.

    python -I clean_process/ jobs.json outcomes.json

This folder is run by a fresh interpreter and imports nothing of atelier, so what it proves holds
for anybody who has only torch and the library that loads the family: diffusers for sd3,
transformers and peft for janus, diffusers and transformers for deepgen, all three for qwen. One
file a family (of_<family>.py), with the same functions, and beside them what they share; they find
each other as a package wherever this folder lies:

    load(job)                the model as a user loads it
    weights(model)           {name: tensor} of the trained part
    adapted(model)           the module that an adapter is put on
    frozen(model)            {part: {name: tensor}} of others that must be the base's
    reproduce(model, file)   {name: array} of what a reference (verification/) is compared with
"""
