"""Train an image generator with GRPO, from prompts to a proven export and a report.

    python -m flows.grpo --recipe tiny/flow-grpo-fast --set algorithm.beta=0.01
    atelier run --recipe tiny/flow-grpo-fast                        the same

prepare -> baseline -> train -> evaluate -> export -> report, each a task around the stage of the
same name, in the flow's main thread: only there does a stop reach the stage. A stage that is done
is skipped, so a retried flow run goes on where it was, in its directory runs/<flow run id>/.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow
from prefect.runtime import flow_run
from prefect.states import State

from atelier.errors import AtelierError
from tasks.artifacts import publish_result
from tasks.outcome import failed
from tasks.stages import baseline, evaluate, export, open_run, prepare, report, train


def _flow_run_name() -> str:
    parameters: dict[str, Any] = flow_run.parameters
    return parameters.get("run_name") or parameters.get("recipe") or f"grpo {flow_run.id:.8}"


@flow(name="grpo", flow_run_name=_flow_run_name)
def grpo(
    recipe: str | None = None,
    overrides: list[str] | None = None,
    run_name: str | None = None,
    resume: str | None = None,
) -> Path | State[Any]:
    """Run the pipeline and return its run directory.

    Args:
        recipe: a recipe's name; default: the one params.yaml names.
        overrides: `dotted.key=value`, applied last.
        run_name: name of the run in Prefect and MLflow.
        resume: an existing run directory, or an id under runs/. It keeps its configuration;
            with `recipe` or `overrides`, what they change runs again.
    """
    try:
        run = open_run(recipe, overrides or [], run_name, resume)
        prepare(run)
        baseline(run)
        train(run)
        evaluate(run)
        export(run)
        report(run)
        publish_result(run)
    except AtelierError as error:
        return failed(error)
    return run


if __name__ == "__main__":
    from flows.command_line import main

    main()
