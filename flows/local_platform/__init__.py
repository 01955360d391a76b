"""What stands around a flow: the Prefect server, the worker, the MLflow UI, and their settings.

`atelier up` (up.py) starts a supervisor (supervisor.py), which keeps the services (services.py)
alive; `atelier down` (down.py) ends them. A single command without a platform has a Prefect server
to itself (server.py).
"""
