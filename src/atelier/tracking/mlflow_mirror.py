"""MLflow shows what the run directory holds. The only module that imports mlflow.

`sync(run)` looks at a run directory and sends what MLflow does not have yet, so it may be called at
any time, again and again; after an outage the next call catches up. It never fails or stalls a run:
every request has a time limit, every call a deadline, and an MLflow that does not answer is left
alone for a while. Stages call it in the background (stages/mirroring.py).

    python -m atelier.tracking.mlflow_mirror RUN_DIRECTORY      send what an outage kept back

`<run>/mlflow.json` remembers what was sent. What a kill left open between sending and remembering
is settled by asking MLflow: steps by the metric history, runs by a tag, images by their names.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from PIL.Image import Image

from atelier import telemetry
from atelier.config.resolve import load_stage_config
from atelier.config.schema import RunConfig
from atelier.processes.locks import hold
from atelier.report.grids import image_grid, image_paths
from atelier.report.run_data import (
    Evaluation,
    batches,
    finite_numbers,
    flat,
    metric_records,
    periodic_evaluations,
    stage_records,
    step_series,
)
from atelier.tracking.mlflow_store import artifacts_beside, sqlite_path, tracking_uri
from atelier.tracking.run_directory import RunDirectory, read_json_object, write_json

telemetry.off_by_default()
# MLflow's own defaults block a call for four minutes when its server is gone (spec platform 11).
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "1")

logger = logging.getLogger(__name__)

LEAVE_ALONE_SECONDS = 30.0
METRICS_A_BATCH = 1000
LARGEST_MODEL_BYTES = 2 * 1024**3
RUN_TAG, ITEM_TAG = "atelier.run", "atelier.item"

# What this process knows: stores that did not answer, runs whose steps it asked for, clients.
_left_alone_until: dict[str, float] = {}
_asked_for_steps: set[str] = set()
_clients: dict[str, Any] = {}


class DeadlineReached(Exception):
    """The call's time is up; what is left is sent by the next one."""


def sync(run: RunDirectory, deadline_seconds: float = 30.0) -> bool:
    """Send what MLflow does not have yet of this run.

    Returns:
        Whether everything was sent. Otherwise (MLflow unreachable, deadline reached, another
        process at it) nothing is lost, and a later call sends the rest.
    """
    with hold(run.root / "locks" / "mlflow.pid") as other:
        if other is not None:
            return False
        config = load_stage_config(run.config("report"))
        uri = tracking_uri(config)
        if is_left_alone(uri):
            return False
        try:
            _Mirror(run, config, uri, time.monotonic() + deadline_seconds).send()
            _left_alone_until.pop(uri, None)
        except DeadlineReached:
            return False
        except Exception as error:  # whatever MLflow does, it must not cost the run
            _left_alone_until[uri] = time.monotonic() + LEAVE_ALONE_SECONDS
            first_line = (str(error) or type(error).__name__).splitlines()[0]
            logger.warning("MLflow at %s: %.200s; the run goes on, sent later", uri, first_line)
            logger.debug("MLflow mirror", exc_info=error)
            return False
    return True


def is_left_alone(uri: str) -> bool:
    """Whether this MLflow did not answer a short while ago, and is not asked yet."""
    return time.monotonic() < _left_alone_until.get(uri, 0.0)


class _Mirror:
    """One call of `sync`: the run, the memory of what was sent, the client."""

    def __init__(self, run: RunDirectory, config: RunConfig, uri: str, deadline: float) -> None:
        self._run = run
        self._config = config
        self._uri = uri
        self._deadline = deadline
        self._description = json.loads(run.run_file.read_text(encoding="utf-8"))
        self._state_file = run.root / "mlflow.json"
        self._state = self._remember()

    def _remember(self) -> dict[str, Any]:
        """What was sent; nothing if the run's digest or the store is another one than before."""
        fresh = {"digest": self._description["digests"]["report"], "uri": self._uri}
        if self._state_file.exists():
            state: dict[str, Any] = json.loads(self._state_file.read_text(encoding="utf-8"))
            if fresh.items() <= state.items():
                return state
        return {**fresh, "sent": [], "last_step": -1, "status": "RUNNING"}

    def _save(self) -> None:
        write_json(self._state_file, self._state)

    def send(self) -> None:
        self._client = _client(self._uri)
        if "run_id" not in self._state:
            self._open_run()
        self._run_id: str = self._state["run_id"]
        for name, send_item in self._items():
            self._check_deadline()
            if name not in self._state["sent"]:
                send_item()
                self._state["sent"].append(name)
                self._save()
        self._send_steps()
        self._send_status()

    def _items(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Everything that is sent once, by a name that changes with what it is."""
        run, records = self._run, stage_records(self._run)
        yield "parameters", self._send_parameters
        for split, context in (("train", "train"), ("heldout", "eval")):
            path = run.data / f"{split}.parquet"
            if records.get("prepare", {}).get("status") == "done":
                yield f"data:{split}", partial(self._send_data, path, context)
        for one in periodic_evaluations(run):
            name = f"{one.suite}:{one.step}"
            yield f"scores:{name}", partial(self._send_evaluation, one)
            yield f"images:{name}", partial(self._send_images, one)
            yield f"compare:{name}", partial(self._send_grid, one)
        for stage, record in records.items():
            if record["status"] == "running":
                continue
            name = f"{stage}:{record['started']}"
            yield f"stage:{name}", partial(self._send_stage, stage, record)
            if record["status"] == "done" and stage in ("baseline", "evaluate"):
                yield f"final:{name}", partial(self._send_final, stage, record)
            if record["status"] == "done" and stage == "export":
                yield f"model:{name}", partial(self._send_model, name)
            if record["status"] == "done" and stage == "report":
                yield f"page:{name}", self._send_page

    def _check_deadline(self) -> None:
        if time.monotonic() > self._deadline:
            raise DeadlineReached

    # The run ---------------------------------------------------------------------------------

    def _open_run(self) -> None:
        description, git = self._description, self._description["git"]
        tags = {
            "atelier.recipe": description["recipe"],
            "atelier.git_dirty": git["dirty"],
            "mlflow.source.git.commit": git["sha"],
            "mlflow.source.name": "atelier",
            "prefect.flow_run_id": description["flow_run_id"],
            **{f"atelier.digest.{stage}": one for stage, one in description["digests"].items()},
        }
        self._state["experiment_id"] = _experiment(self._client, self._config, self._uri)
        item = f"run:{self._state['digest']}"
        self._state["run_id"] = self._find_or_create_run(item, description["run_name"], tags)
        self._save()
        now = read_json_object(self._run.run_file)  # opening took seconds: the run went on
        write_json(self._run.run_file, now | {"mlflow_run_id": self._state["run_id"]})

    def _find_or_create_run(
        self, item: str, name: str, tags: Mapping[str, Any], start: int | None = None
    ) -> str:
        """One MLflow run an item, even if an earlier call died before it could remember it."""
        identity = {RUN_TAG: self._description["id"], ITEM_TAG: item}
        experiment = self._state["experiment_id"]
        condition = " and ".join(f"tags.`{key}` = '{value}'" for key, value in identity.items())
        found = self._client.search_runs([experiment], condition, max_results=1)
        if found:
            return str(found[0].info.run_id)
        all_tags = {**tags, **identity}
        text = {key: str(value) for key, value in all_tags.items() if value is not None}
        run = self._client.create_run(experiment, start_time=start, tags=text, run_name=name)
        return str(run.info.run_id)

    def _send_stage(self, stage: str, record: dict[str, Any]) -> None:
        """A child run with the stage's duration and outcome."""
        start, end = (_milliseconds(record[key]) for key in ("started", "ended"))
        tags = {"mlflow.parentRunId": self._run_id, "atelier.error": record.get("error")}
        item = f"stage:{stage}:{record['started']}"
        child = self._find_or_create_run(item, stage, tags, start)
        self._client.log_metric(child, "seconds", record["seconds"], timestamp=end)
        status = "FINISHED" if record["status"] == "done" else "FAILED"
        self._client.set_terminated(child, status=status, end_time=end)

    def _send_status(self) -> None:
        """Running until the report is there; failed while a stage's last attempt failed."""
        states = {stage: record["status"] for stage, record in stage_records(self._run).items()}
        finished = "FINISHED" if states.get("report") == "done" else "RUNNING"
        status = "FAILED" if "failed" in states.values() else finished
        if status == self._state["status"]:
            return
        if status == "RUNNING":
            self._client.update_run(self._run_id, status=status)
        else:
            self._client.set_terminated(self._run_id, status=status)
        self._state["status"] = status
        self._save()

    # What the run was made from --------------------------------------------------------------

    def _send_parameters(self) -> None:
        from mlflow.entities import Param

        values = self._config.model_dump(mode="json", exclude={"tracking"})
        params = [Param(key, str(value)) for key, value in flat(values)]
        for start in range(0, len(params), 100):
            self._client.log_batch(self._run_id, params=params[start : start + 100])
        self._client.log_artifact(self._run_id, str(self._run.config("report")), "config")

    def _send_data(self, path: Path, context: str) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        # Read now: the stage notes its data after it began, which is when the run was opened.
        md5 = read_json_object(self._run.run_file)["data"]["md5"]
        record = stage_records(self._run)["prepare"]
        source = self._config.data.path or self._config.data.source
        dataset = Dataset(
            name=f"prompts-{path.stem}",
            digest=md5[path.name],
            source_type="local",
            source=json.dumps({"uri": source}),
            profile=json.dumps(finite_numbers(record["summary"])),
        )
        tag = InputTag("mlflow.data.context", context)
        self._client.log_inputs(self._run_id, datasets=[DatasetInput(dataset, [tag])])

    # Series and images -----------------------------------------------------------------------

    def _send_steps(self) -> None:
        """Training metrics in whole steps. A resumed trainer repeats steps, with equal values but
        for timings: those that MLflow has are not sent again."""
        records = metric_records(self._run)
        if not records:
            return
        if self._run_id not in _asked_for_steps:
            there = self._client.get_metric_history(
                self._run_id, next(iter(step_series(records[0])))
            )
            steps = [metric.step for metric in there]
            self._state["last_step"] = max([self._state["last_step"], *steps])
        new = [record for record in records if record["step"] > self._state["last_step"]]
        # A batch that fails may have arrived all the same: ask again before sending it again.
        _asked_for_steps.discard(self._run_id)
        for batch in batches(new, METRICS_A_BATCH):
            self._check_deadline()
            self._log({(n, r["step"]): v for r in batch for n, v in step_series(r).items()})
            self._state["last_step"] = batch[-1]["step"]
            self._save()
        _asked_for_steps.add(self._run_id)

    def _log(self, values: Mapping[tuple[str, int], float], timestamp: int | None = None) -> None:
        """Metrics by (name, step). With an equal timestamp MLflow keeps equal ones once."""
        from mlflow.entities import Metric

        now = timestamp or int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for (name, step), value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def _send_evaluation(self, one: Evaluation) -> None:
        written = int((one.folder / "summary.json").stat().st_mtime * 1000)
        prefix = f"evaluation/{one.suite}"
        self._log({(f"{prefix}/{k}", one.step): v for k, v in one.means.items()}, written)

    def _send_final(self, stage: str, record: dict[str, Any]) -> None:
        step = 0 if stage == "baseline" else self._config.train.steps
        numbers = finite_numbers(record["summary"])
        ended = _milliseconds(record["ended"])
        name = "baseline" if stage == "baseline" else "final"
        self._log({(f"{name}/{key}", step): value for key, value in numbers.items()}, ended)

    def _send_images(self, one: Evaluation) -> None:
        """A grid by step, for the slider of a run's page and of the charts."""
        key = f"evaluation/{one.suite}"
        prefix = f"images/{key.replace('/', '~')}+step+{one.step}+"
        there = self._client.list_artifacts(self._run_id, "images")
        if not any(file.path.startswith(prefix) for file in there):
            grid = self._grid(one)
            self._client.log_image(self._run_id, grid, key=key, step=one.step, synchronous=True)

    def _send_grid(self, one: Evaluation) -> None:
        """The same as a plain file: Compare shows those that both runs have, in their root."""
        name = f"{one.suite}-step-{one.step:06d}.png"
        self._client.log_image(self._run_id, self._grid(one), artifact_file=name)

    def _grid(self, one: Evaluation) -> Image:
        return image_grid(image_paths(one.folder, self._config.tracking.images), scale=2)

    # Results ---------------------------------------------------------------------------------

    def _send_page(self) -> None:
        self._client.log_artifact(self._run_id, str(self._run.report / "index.html"), "report")

    def _send_model(self, name: str) -> None:
        """The exported directories as a logged model; a large base stays where it is."""
        from mlflow.entities import LoggedModelOutput

        sizes = [path.stat().st_size for path in self._run.export.rglob("*") if path.is_file()]
        if sum(sizes) > LARGEST_MODEL_BYTES:
            self._client.set_tag(self._run_id, "atelier.export", str(self._run.export))
            return
        models = self._state.setdefault("models", {})
        if name not in models:
            model = self._client.create_logged_model(
                self._state["experiment_id"],
                name=f"{self._config.policy.family}-{self._config.algorithm.name}",
                source_run_id=self._run_id,
                params={"export.weights": self._config.export.weights},
                model_type=self._config.policy.family,
            )
            models[name] = model.model_id
            self._save()
        self._client.log_model_artifacts(models[name], str(self._run.export))
        self._client.finalize_logged_model(models[name], "READY")
        output = LoggedModelOutput(models[name], self._config.train.steps)
        self._client.log_outputs(self._run_id, [output])


# The store -----------------------------------------------------------------------------------


def _client(uri: str) -> Any:
    """A client whose store is ready. Creating a SQLite store in several processes at once fails
    in all but one (spec platform 11), so it is done under a file lock."""
    from mlflow import MlflowClient

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    path = sqlite_path(uri)
    if uri in _clients:
        return _clients[uri]
    if path is None:
        return MlflowClient(uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        client = MlflowClient(uri)
        client.search_experiments(max_results=1)
    _clients[uri] = client
    return client


def _experiment(client: Any, config: RunConfig, uri: str) -> str:
    from mlflow.exceptions import MlflowException

    name = config.tracking.experiment
    path = sqlite_path(uri)
    location = artifacts_beside(path) if path else None
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, artifact_location=location))
        except MlflowException as error:
            found = client.get_experiment_by_name(name)  # another run may have been faster
            if found is None:
                raise error
    return str(found.experiment_id)


def _milliseconds(utc: str) -> int:
    return int(datetime.fromisoformat(utc).timestamp() * 1000)


def main() -> int:
    """Send what is missing of the runs named on the command line; 0 if all was sent."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    done = [sync(RunDirectory(Path(name).resolve()), 600.0) for name in sys.argv[1:]]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
