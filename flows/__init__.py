"""Prefect flows, one file a flow: nothing but the order of things."""
