"""How far a reloaded export may be from the trainer.

Images of float32 weights may differ by one grey level, log-probs by LOG_PROB, and every likeliest
token is the same one. In 16 bit other hardware rounds otherwise: what was measured at export is the
bound later, and log-probs may be LOG_PROB_16_BIT apart in the mean even then. Where weights are
float32 and only what paints from them computes in 16 bit, images may be PAINTED_16_BIT apart.
"""

from __future__ import annotations

from pathlib import Path

from atelier.errors import CheckpointError
from atelier.export.record import ExportRecord
from atelier.export.reference import Difference, Differences

GREY_LEVEL = 1 / 255
LOG_PROB = 1e-4  # nats
LOG_PROB_16_BIT = 0.1
PAINTED_16_BIT = 8 * GREY_LEVEL  # in the mean; of what one other word paints, it is far more


def require_same(where: Path, record: ExportRecord, found: Differences) -> None:
    """Hold differences to the trainer against what they may be.

    Raises:
        CheckpointError: one is larger.
    """
    exact = record.dtype == "float32"
    if exact and found.exact_images:
        _exact_images(where, found.images)
    else:
        _similar_images(where, record, found.images, PAINTED_16_BIT if exact else None)
    if found.log_probs is not None:
        (_exact_log_probs if exact else _similar_log_probs)(where, record, found.log_probs)
    if exact and found.greedy is not None and found.greedy < 1:
        raise CheckpointError(
            f"{where}: {1 - found.greedy:.1%} of the tokens that are drawn without chance are not "
            "those that the trainer draws"
        )


def _exact_images(where: Path, found: Difference) -> None:
    if found.max > GREY_LEVEL * 1.001:
        raise CheckpointError(
            f"{where}: images differ from the trainer's by up to {found.max * 255:.0f}/255 "
            f"(mean {found.mean * 255:.2f}/255); at most 1/255 is rounding"
        )


def _similar_images(
    where: Path, record: ExportRecord, found: Difference, limit: float | None
) -> None:
    earlier = record.difference
    if earlier is not None and found.mean > 2 * earlier.mean + GREY_LEVEL:
        raise CheckpointError(
            f"{where}: images in {record.dtype} differ from the trainer's by "
            f"{found.mean * 255:.2f}/255 in the mean, at export by {earlier.mean * 255:.2f}/255"
        )
    if limit is not None and found.mean > limit:
        raise CheckpointError(
            f"{where}: images differ from the trainer's by {found.mean * 255:.2f}/255 in the mean; "
            f"at most {limit * 255:.0f}/255 is rounding, where 16 bit paint them"
        )


def _exact_log_probs(where: Path, record: ExportRecord, found: Difference) -> None:
    if not found.max <= LOG_PROB:  # nor anything that is not a number
        raise CheckpointError(
            f"{where}: log-probabilities of tokens differ from the trainer's by up to "
            f"{found.max:.2g} (mean {found.mean:.2g}); at most {LOG_PROB:g} is rounding"
        )


def _similar_log_probs(where: Path, record: ExportRecord, found: Difference) -> None:
    earlier = record.log_prob_difference
    limit = LOG_PROB_16_BIT if earlier is None else 2 * earlier.mean + LOG_PROB_16_BIT / 10
    if not found.mean <= limit:
        raise CheckpointError(
            f"{where}: log-probabilities of tokens in {record.dtype} differ from the "
            f"trainer's by {found.mean:.2g} in the mean; at most {limit:.2g} is rounding"
        )
