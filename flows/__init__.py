"""Prefect flows, one file a flow: nothing but the order of things.

Importing the package settles Prefect's environment (platform/environment.py), which has to happen
before prefect itself is imported.
"""

from flows.local_platform.environment import settle

settle()
