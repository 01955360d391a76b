"""Prefect as Atelier uses it: state inside the project, no reporting home, logs of the library.

Every variable that is set already is left alone, so a server of one's own is used by setting
PREFECT_API_URL, and another home by PREFECT_HOME. The file prefect.toml says the same to Prefect's
own command line, when it is run from the repository root.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from urllib.parse import urlsplit

from atelier import telemetry
from atelier.config.paths import repository_root
from atelier.errors import ConfigError

# A run whose heartbeats stop is a zombie (configs/automations/zombie.yaml).
HEARTBEAT_SECONDS = 30

# On a console the stages' own lines are shown, and Prefect's nowhere.
_QUIET = {"PREFECT_LOGGING_LEVEL": "CRITICAL", "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL"}


def settle(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set Prefect's variables that the user has not set. To be called before prefect's import."""
    telemetry.off_by_default(environment)
    environment.setdefault("PREFECT_HOME", str(repository_root() / ".prefect"))
    # What stages log reaches the run's page; threads without a run in their context stay silent.
    environment.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "atelier")
    environment.setdefault("PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW", "ignore")
    environment.setdefault("PREFECT_FLOWS_HEARTBEAT_FREQUENCY", str(HEARTBEAT_SECONDS))
    if not environment.get("PREFECT_API_URL"):
        # Set but empty, it starts a server that logs tracebacks of its services.
        environment.pop("PREFECT_API_URL", None)
        for name, value in _QUIET.items():
            environment.setdefault(name, value)


def for_services(api_url: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of the server and the worker, and by the worker of flow runs: as settled, but
    with Prefect's own log lines, which belong on a run's page."""
    quiet = {name for name, value in _QUIET.items() if environment.get(name) == value}
    kept = {name: value for name, value in environment.items() if name not in quiet}
    return {**kept, "PREFECT_API_URL": api_url, "PYTHONUNBUFFERED": "1"}


def prefect_home() -> Path:
    """Where the server's database and the platform's state and logs lie."""
    return Path(os.environ["PREFECT_HOME"])


def chosen_api_url() -> str | None:
    """The server the user named in PREFECT_API_URL. What prefect.toml says is no choice: it is
    there for everybody, whether a server runs or not."""
    return os.environ.get("PREFECT_API_URL") or None


def platform_api_url() -> str:
    """Where the platform's server is or will be: PREFECT_API_URL, or `api.url` in prefect.toml.

    Raises:
        ConfigError: prefect.toml does not say, or what is said is no address of a server.
    """
    chosen = chosen_api_url()
    where = "prefect.toml: api.url" if chosen is None else "PREFECT_API_URL"
    url = (chosen or _configured_api_url()).rstrip("/")
    if not is_http(url):
        raise ConfigError(f"{where} is {without_password(url)!r}: http://HOST:PORT/api expected")
    return url


def is_http(url: str) -> bool:
    """Whether it names a host, by http or https, and no impossible port."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def without_password(url: str) -> str:
    """The address as it may be shown."""
    return re.sub(r"//[^/@]*@", "//***@", url)


def _configured_api_url() -> str:
    path = repository_root() / "prefect.toml"
    try:
        return str(tomllib.loads(path.read_text(encoding="utf-8"))["api"]["url"])
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{path}: api.url is missing; `make up` needs it") from error
