"""Complex-Edit, the benchmark of instructions that ask for several edits at once: its rules.

A judge gives an edited image three marks: for instruction following (IF) and identity preservation
(IP), beside its source, and for perceptual quality (PQ), alone. Source: the Qwen vision GRPO guide.
"""
