"""Pre-training of the embedded Tiny Janus, by `python -m atelier.policies.janus.pretrain`.

`train --out DIR` renders the scene world, trains the image tokenizer, freezes it, then trains all
else to draw, judge, answer, draw again and edit, in the conversations that reinforcement learning
later has with it. Its snapshots are complete checkpoints; `promote` turns one of them into
`assets/tiny-janus`. Needs torch and transformers, not the rest of Atelier's dependencies; about
nine minutes on one H200. Source: FocusDiff and Janus-Pro-R1.
"""
