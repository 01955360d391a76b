"""DeepGen: a vision-language model reads prompts, a connector translates, SD3's transformer paints.

How the parts meet: `source` opens what `policy.path` names, a directory or a checkpoint over base
models; `template` and `inputs` make tokens of a prompt and of reference images (`vision`);
`reading` runs the language model over them and keeps some of its layers; `connector` makes of these
what the transformer is conditioned with (`conditions`); `transformer` predicts a velocity, also
beside the latents of reference images.

`policy` puts them together: `encoding` encodes prompts once each, `module` is what is trained.
`published` names weights as published checkpoints do, `layout` writes a directory. `tiny` has the
parts of the embedded model, `pretrain` trains them. Source: DeepGen-RL.
"""
