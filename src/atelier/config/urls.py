"""Which URLs can be a service's: a reward's or a judge's.

Stricter than `urlsplit`, which takes nearly everything and drops tabs and newlines silently: what
passes here, the HTTP client takes too, so a typing error ends a run before it begins.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

_LONGEST = 2000
_LONGEST_SHOWN = 100
_PRINTABLE = re.compile(r"[!-~]+")
_NETLOC = re.compile(r"(?P<host>\[[^\[\]]+\]|[^:\[\]]+)(:(?P<port>[0-9]{1,5}))?")
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?")
_LONGEST_NAME = 253
_LIKE_IPV4 = re.compile(r"[0-9]+(\.[0-9]+){3}")


def service_url_problem(url: str) -> str | None:
    """Why a URL cannot be a service's, or None."""
    if len(url) > _LONGEST or not _PRINTABLE.fullmatch(url):
        return (
            f"{_shown(url)} is not a URL of printable ASCII characters (at most {_LONGEST}); write "
            "an international host name in its xn-- form"
        )
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that hold no address
        return _no_address(url)
    if "@" in parts.netloc:
        return "a URL carries no user or password; a token is read from the environment"
    if parts.scheme not in ("http", "https") or not _is_host_and_port(parts.netloc):
        return _no_address(url)
    if "?" in url or "#" in url:
        return f"{_shown(url)} has more than host, port and path"
    return None


def _shown(url: str) -> str:
    """Its beginning, without what may be a secret: user and password, and a query."""
    if "@" in url:
        scheme, mark, _ = url.partition("://")
        kept = f"{scheme}://..." if mark else "..."
    else:
        kept = re.sub(r"(?s)([?#]).+", r"\1...", url)
    return repr(kept[:_LONGEST_SHOWN])


def _no_address(url: str) -> str:
    return f"{_shown(url)} is no http or https address, such as http://host:8400"


def _is_host_and_port(netloc: str) -> bool:
    found = _NETLOC.fullmatch(netloc)
    if found is None or (found["port"] is not None and not 0 < int(found["port"]) < 65536):
        return False
    host = found["host"]
    if host.startswith("["):
        return _is_address(host[1:-1], ipaddress.IPv6Address)
    if _LIKE_IPV4.fullmatch(host):
        return _is_address(host, ipaddress.IPv4Address)
    return len(host) <= _LONGEST_NAME and _NAME.fullmatch(host) is not None


def _is_address(text: str, kind: type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address]) -> bool:
    if "%" in text:  # a zone: it names an interface of one machine
        return False
    try:
        kind(text)
    except ValueError:
        return False
    return True
