"""Qwen-Image with a trained text encoder: a language model writes, a frozen transformer paints.

How the parts meet: `loading` opens a pipeline's directory; a `templates.Template` says what stands
around a user's words, and `chat` makes tokens of it; `inputs` makes batches of these and of
completions; `conditioning` runs the language model over them and keeps what the transformer was
trained to see; `environment` makes images of that, from noise that `noise` keys.

`tiny` has the parts of the embedded pipelines, `pretrain` trains them.

`policy` puts them together: `reading` reads prompts, `generation` writes completions, `painting`
makes images of both, and a `module.Segment` of prompts and completions, given to a
`module.QwenModule`, is the one forward pass that gives log-probs; `shuffling` gives evaluation
images the words of others; `served` has completions drawn by vLLM. Draws, log-probs of text,
adapters and the reference are those of policies.language, as is what the policy has in common with
others.
"""
