"""The proxy to the API server, if any, and the check of host names.

Source: Go golang.org/x/net/http/httpproxy, which client-go uses for HTTP(S)_PROXY and NO_PROXY.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from yarl import URL

from watchrelay.core.errors import ConfigError

_FORM = "http://, https:// or socks5://host:port"
_NAME_AND_PORT = re.compile(r"\[?(?P<name>[^]]*?)\]?(:(?P<port>[0-9]{1,5}))?")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def choose_proxy(
    server: str, *, proxy_url: str | None, environ: Mapping[str, str], where: str
) -> str | None:
    """The proxy for `server`: the kubeconfig's, which NO_PROXY does not touch, else the
    environment's.

    Raises: ConfigError, without the URL, which may hold a password."""
    if proxy_url:
        return _usable(proxy_url, path="proxy-url", where=where)
    target = urlsplit(server)
    name = f"{target.scheme}_proxy"
    found = environ.get(name.upper()) or environ.get(name)
    if not found or _bypassed(target, environ.get("NO_PROXY") or environ.get("no_proxy") or ""):
        return None
    url = found if "://" in found else f"http://{found}"
    return _usable(url, path=f"${name.upper()}", where="environment")


def _usable(url: str, *, path: str, where: str) -> str:
    try:
        parts = urlsplit(url)
        schemes = {"http", "https", "socks5", "socks5h"}
        usable = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError.of("is not the URL of a proxy", path, where, hint=_FORM)
    try:
        check_host(parts.hostname or "")
    except ValueError as error:
        raise ConfigError.of(str(error), path, where, hint=_FORM) from None
    if parts.scheme.startswith("socks5") and importlib.util.find_spec("aiohttp_socks") is None:
        cure = "pip install 'watchrelay[socks]'; the image has it"
        raise ConfigError.of("a socks5 proxy needs an extra package", path, where, hint=cure)
    # names are resolved by the proxy in either case
    return url.replace("socks5h://", "socks5://", 1)


def _bypassed(target: SplitResult, no_proxy: str) -> bool:
    host = (target.hostname or "").rstrip(".")
    port = target.port or {"http": 80, "https": 443}.get(target.scheme)
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    rules = (entry.strip().lower() for entry in no_proxy.split(","))
    return any(_matches(rule, host, port, address) for rule in rules if rule)


def _matches(rule: str, host: str, port: int | None, address: Address | None) -> bool:
    if rule == "*":
        return True
    if "/" in rule:
        try:
            return address is not None and address in ipaddress.ip_network(rule, strict=False)
        except ValueError:
            return False
    name = rule
    if _address(rule) is None and (parts := _NAME_AND_PORT.fullmatch(rule)):
        name = parts["name"]
        if parts["port"] is not None and int(parts["port"]) != port:
            return False
    if (listed := _address(name)) is not None:
        return listed == address
    name = name.removeprefix("*")
    if name.startswith("."):
        return host.endswith(name)
    return host == name or host.endswith(f".{name}")


def _address(text: str) -> Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def check_host(name: str) -> None:
    """Pass for every valid host name and address; a dot at the end and underscores are allowed.

    Raises: ValueError, without the name. Source: RFC 1035 2.3.4; what `socket`, `ssl` and
    `yarl` raise a UnicodeError for in the middle of a request."""
    if not name.isprintable() or " " in name:
        raise ValueError("names a host with a blank or a control character")
    cannot = "names a host that cannot exist: a part of it"
    try:
        name.encode("idna")
    except UnicodeError:
        raise ValueError(f"{cannot} between dots is empty, or longer than 63 characters") from None
    try:
        shown = URL(f"http://{name}").host if "xn--" in name.lower() else name
    except ValueError:
        shown = None
    if shown is None:
        raise ValueError(f"{cannot} begins with xn-- and encodes no name")
