"""What becomes of an export whose clean process does not end well."""

from __future__ import annotations

import pytest

from atelier.errors import CheckpointError
from atelier.export import reload


def test_a_clean_process_that_takes_too_long_is_an_error_with_its_mend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stage ends with a word and an exit code of ours, and with no traceback."""
    monkeypatch.setattr(reload, "TIMEOUT", 0.01)
    with pytest.raises(CheckpointError, match=r"more than 0.01 s.*verify_prompts"):
        reload.reload_all([], "cpu")
