"""The six stages of a run: what a Prefect task and a DVC stage both call.

Each module has one `run(run: RunDirectory) -> dict`: it reads its own resolved configuration and
what earlier stages wrote, writes its own folder only, and returns a small summary. frame.py holds
what they share: skipping what is done, moving aside what is outdated, one record a stage.
"""
