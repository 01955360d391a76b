"""P(yes), from the log-probabilities of the first generated token."""

from __future__ import annotations

import math

from atelier.judge.replies import Failure, Parsed, Reply, excerpt

_LEADING_SPACE = " \u2581\u0120\n\u010a"  # as text, and as SentencePiece and BPE write it
_ROUNDING = 1e-3  # by which a log-probability may come out above 0


def read_yes(reply: Reply, minimum_mass: float = 0.01) -> Parsed[float] | Failure:
    """p_yes / (p_yes + p_no) in [0, 1], over all casings and leading spaces of either word.

    A word that is not among the likeliest tokens has at most what they leave, and counts as 0. A
    reply cut off after the first token is read: nothing else of it is needed.

    Args:
        minimum_mass: least p_yes + p_no. A judge that begins with something else did not answer,
            and the ratio of two tiny numbers, one of them unknown, is no judgement.
    """
    if reply.refusal:
        return Failure(f"the judge refused: {excerpt(reply.refusal)}", reply)
    if reply.finish_reason == "content_filter":
        return Failure("not finished (finish_reason content_filter)", reply)
    if not reply.first_token:
        return Failure("no log-probabilities: the endpoint sends none", reply)
    mass = {"yes": 0.0, "no": 0.0}
    for token, log_prob in {*reply.first_token}:  # the chosen token may be listed twice
        word = token.lstrip(_LEADING_SPACE).casefold()
        if math.isnan(log_prob) or log_prob > _ROUNDING:
            return Failure(f"{log_prob} is no log-probability", reply)
        if word in mass:
            mass[word] += math.exp(min(log_prob, 0.0))  # -inf and -9999.0 are 0
    total = mass["yes"] + mass["no"]
    if total == 0.0:
        return Failure("neither yes nor no among the likeliest first tokens", reply)
    if total < minimum_mass:
        return Failure(f"yes and no together have a probability of {total:.2g} only", reply)
    return Parsed(mass["yes"] / total, reply)
