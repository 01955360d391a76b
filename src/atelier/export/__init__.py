"""Export of a trained model, proven by reloading it in a clean process (docs/export.md).

    export_run      the trained tensors of a run -> adapter and merged directories    run.py
    verify          an exported directory, wherever it was moved -> proof or error    verify.py

One file a concern: base (the model trained from), lora (names and arithmetic), adapter and merged
(the two formats), survival (what 16 bit leaves of an update), reference and tolerances (what must
be reproduced, how closely), clean_process/ (the reload), manifest, card, publish (atomic
replacement). What differs between families is families.Family, one folder each: sd3/, janus/.
"""
