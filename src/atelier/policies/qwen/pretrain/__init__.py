"""Pre-training of the embedded pipelines: Tiny Qwen-Image and its twin that edits.

Three trainings, each with a folder of its own: `autoencoder`; `writer`, the language model, which
answers riddles half right; `painter`, the transformer, which paints from the frozen writer's hidden
states what a completion says, whatever the user said. `exam` measures how much the completion
matters, and `promote` refuses a pipeline where it does not.
"""
