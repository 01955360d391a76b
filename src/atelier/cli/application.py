"""The list of verbs. Each lives beside the others of its kind."""

from __future__ import annotations

import click

from atelier import __version__
from atelier.cli import (
    complex_edit,
    configuration,
    docs,
    judges,
    machine,
    mmmg,
    paircomp,
    platform,
    results,
    retention,
    rewards,
    runs,
    unigenbench,
)
from atelier.cli.stopping import InterruptibleGroup


@click.group(
    cls=InterruptibleGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 2 bad configuration, 3 plan refused, 75 stopped and resumable.",
)
@click.version_option(__version__, prog_name="atelier")
def application() -> None:
    """GRPO post-training of image generators: run, resume, compare and trust.

    Start with `atelier demo`: it trains the embedded model on the CPU in minutes.
    """


_MODULES = (
    configuration,
    docs,
    runs,
    results,
    paircomp,
    mmmg,
    complex_edit,
    unigenbench,
    retention,
    rewards,
    judges,
    platform,
    machine,
)
for _module in _MODULES:
    for _verb in _module.VERBS:
        application.add_command(_verb)
