"""Prefect flows, one file a flow: nothing but the order of things.

Importing the package settles Prefect's environment (environment.py), which has to happen before
prefect itself is imported.
"""

from flows.environment import settle

settle()
