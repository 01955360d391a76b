"""UniGenBench, the benchmark of test points: its rules, as pure functions.

A prompt names test points, each of a dimension; a judge says of every image which of them it shows.
Scores are shares of test points. Source: DeepGen-RL.
"""
