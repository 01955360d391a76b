"""Pre-training of the embedded Tiny SD3: `python -m atelier.policies.sd3.pretrain train --out DIR`.

Renders the scene world, trains the autoencoder, then the transformer by rectified flow, and saves a
complete pipeline whenever the held-out OCR similarity passes a threshold. `promote` turns one of
these snapshots into `assets/tiny-sd3`. Needs torch, diffusers, transformers and rapidocr, not the
rest of Atelier's dependencies; about eight minutes on one H100.
"""
