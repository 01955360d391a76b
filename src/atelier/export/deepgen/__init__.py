"""DeepGen: a directory in the published layout, an adapter of the transformer, and a file of
weights by published names (`sft`)."""
