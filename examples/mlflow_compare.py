"""Take the picture of docs/tutorial.md: two runs compared in the MLflow UI, seen by a browser.

    apt-get install chromium && pip install playwright
    python examples/mlflow_compare.py http://127.0.0.1:5000 FIRST_RUN_ID SECOND_RUN_ID out.png

The ids are `mlflow_run_id` in the runs' run.json; the server is the one a run's last line starts.
Three views are put below each other: parameters that differ, curves, images of one step. The script
fails when a view does not show both runs, so it is also a check of what MLflow was sent.
"""

from __future__ import annotations

import argparse
import io
import json
import urllib.parse
import urllib.request

from PIL import Image
from playwright.sync_api import Page, sync_playwright

VIEW = {"width": 1360, "height": 620}
CHARTS = "evaluation/ocr/(similarity|gold|exact)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server")
    parser.add_argument("runs", nargs=2)
    parser.add_argument("output")
    parser.add_argument("--image", default="ocr-step-000040.png", help="artifact to compare")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    arguments = parser.parse_args()
    first, second = (get_run(arguments.server, run) for run in arguments.runs)
    names = [first["info"]["run_name"], second["info"]["run_name"]]
    experiment = first["info"]["experiment_id"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=arguments.chromium, args=["--no-sandbox"]
        )
        page = browser.new_page(viewport=VIEW)
        open_compare(page, arguments.server, experiment, arguments.runs, names)
        views = [parameters_view(page), images_view(page, arguments.image)]
        views.insert(1, charts_view(page, arguments.server, experiment, names))
        browser.close()
    stack(views).save(arguments.output, optimize=True)


def get_run(server: str, run_id: str) -> dict:
    query = urllib.parse.urlencode({"run_id": run_id})
    with urllib.request.urlopen(f"{server}/api/2.0/mlflow/runs/get?{query}") as answer:
        return json.load(answer)["run"]


def open_compare(
    page: Page, server: str, experiment: str, runs: list[str], names: list[str]
) -> None:
    """The page behind the Compare button."""
    quoted = urllib.parse.quote(json.dumps(runs, separators=(",", ":")))
    experiments = urllib.parse.quote(json.dumps([experiment]))
    page.goto(f"{server}/#/compare-runs?runs={quoted}&experiments={experiments}")
    page.get_by_text("Run details").wait_for()
    close_assistant(page)
    page.get_by_text("Visualizations").click()  # fold away
    require(page, names)


def parameters_view(page: Page) -> Image.Image:
    """The parameters that differ."""
    page.get_by_role("switch").first.click()
    page.get_by_role("rowheader", name="algorithm.beta").wait_for()
    return shot(page)


def images_view(page: Page, name: str) -> Image.Image:
    """One image of both runs, side by side."""
    page.get_by_text(name).first.click()
    page.wait_for_timeout(3000)
    page.get_by_text("Artifacts", exact=True).last.evaluate("it => it.scrollIntoView()")
    page.wait_for_timeout(500)
    return shot(page)


def charts_view(page: Page, server: str, experiment: str, names: list[str]) -> Image.Image:
    """The runs' curves in one chart each."""
    page.goto(f"{server}/#/experiments/{experiment}/runs?compareRunsMode=CHART")
    search = page.get_by_placeholder("Search metric charts")
    search.wait_for()
    close_assistant(page)
    search.fill(CHARTS)
    page.wait_for_timeout(3000)
    page.get_by_text("evaluation", exact=True).first.click()  # fold the image cards away
    page.wait_for_timeout(4000)
    require(page, names)
    return shot(page)


def close_assistant(page: Page) -> None:
    page.wait_for_timeout(1500)
    button = page.get_by_role("button", name="Close")
    if button.count():
        button.first.click()
        page.wait_for_timeout(500)


def require(page: Page, texts: list[str]) -> None:
    shown = page.inner_text("body")
    missing = [text for text in texts if text not in shown]
    if missing:
        raise SystemExit(f"{page.url} does not show {missing}")


def shot(page: Page) -> Image.Image:
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def stack(images: list[Image.Image]) -> Image.Image:
    """Below each other, in 256 colours to keep the file small."""
    whole = Image.new("RGB", (images[0].width, sum(image.height for image in images)))
    top = 0
    for image in images:
        whole.paste(image, (0, top))
        top += image.height
    return whole.quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)


if __name__ == "__main__":
    main()
