"""Train an image generator with GRPO, from prompts to a proven export and a report.

    prefect deployment run grpo/full --param recipe=tiny/flow-grpo-fast --watch
    atelier run --recipe tiny/flow-grpo-fast                        the same, without a platform

prepare -> baseline -> train -> evaluate -> export -> report, each a task around the stage of the
same name, in the flow's main thread: only there does a stop reach the stage. A stage that is done
is skipped, so a retried flow run goes on where it was, in its directory runs/<flow run id>/.
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from flows.frame import framed, mlflow_ui, name_of_run
from tasks.artifacts import publish_report, publish_results
from tasks.progress import TrainingProgress
from tasks.servers import servers_table
from tasks.slots import gpu_slots, require_gpu_slots
from tasks.stages import baseline, evaluate, export, open_run, prepare, report, train


@flow(name="grpo", flow_run_name=name_of_run)
@framed
def grpo(
    recipe: str | None = None,
    overrides: list[str] | None = None,
    run_name: str | None = None,
    resume: str | None = None,
    variables: dict[str, str] | None = None,
) -> Path:
    """Run the pipeline and return its run directory.

    Args:
        recipe: a recipe's name; default: the one params.yaml names.
        overrides: `dotted.key=value`, applied last.
        run_name: name of the run in Prefect and MLflow.
        resume: an existing run directory, or (the beginning of) an id under runs/. It keeps its
            configuration; with `recipe` or `overrides`, what they change runs again.
        variables: of DeepGen-RL's guide, by name, as `atelier variables --json` prints them where
            the run is submitted.
    """
    run = open_run(recipe, overrides or [], run_name, resume, variables)
    require_gpu_slots(run)
    prepare(run)
    computing = ("baseline", "train", "evaluate", "export")
    with TrainingProgress(run) as progress, gpu_slots(run, computing, progress.say):
        baseline(run)
        with servers_table(run):
            train(run)
        evaluate(run)
        export(run)
    report(run)
    publish_results(run)
    publish_report(run, mlflow_ui())
    return run
