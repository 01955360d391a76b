"""MMMG, the benchmark of knowledge graphs in educational pictures: its rules, as pure functions.

Which elements and dependencies of a graph a picture shows makes a graph of its own; how much of the
true one it is, times how readable the picture is, is the score. Source: the Qwen vision GRPO guide.
"""
