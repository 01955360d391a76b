"""Janus-Pro (transformers' JanusForConditionalGeneration) as a token policy.

How the parts meet: `loading` opens a checkpoint; `conversation` says what is read before an image
or an answer, `rows` makes tensors of it, with images as codes or as features from `pixels`;
`sampling` draws tokens after it (over `decoding`); a `module.Segment` of context and tokens, given
to a `module.JanusModule`, is the one forward pass that gives log-probs, in one of the forms of
`log_probs`; `trainable` says what is trained. What has to do with text tokens, adapters and the
reference is in policies.language, as is what the policy has in common with others.
"""
