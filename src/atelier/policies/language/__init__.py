"""What policies that train a language model share, whatever they do with its tokens.

`policy` is what is alike of policies, `module` of what they train. `draws` draws tokens by keys;
`log_probs` says what a token's probability is; `adapters` puts a low-rank adapter on a language
model, or says what else of it is trained; `reference` keeps it as it was; `recomputation` trades
time for memory in a replay.
"""
