"""Which proxy carries a request: the environment's, unless NO_PROXY names the server or it is on
this machine. REST and gRPC both ask here who is exempt."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from importlib.util import find_spec
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies

from isentrope_wire import environment
from isentrope_wire.errors import ConfigurationError

_SOCKS = ("socks5", "socks5h")
_SCHEMES = ("http", "https", *_SOCKS)
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy, and the variable that names it."""

    variable: str
    address: str
    """With its password, if it has one."""

    def __str__(self) -> str:
        """For messages, without the password."""
        shown = re.sub(r"//[^/]*@", "//", self.address)
        return f"{shown} ({self.variable})"


def proxy_of(url: str) -> Proxy | None:
    """The proxy on the way to `url`; None: there is none. ConfigurationError: the variable names
    one that can't be used."""
    scheme = url.partition("://")[0].lower()
    proxies = getproxies()
    name = next((name for name in (scheme, "all") if proxies.get(name, "").strip()), None)
    if name is None or is_exempt(url):
        return None
    given = proxies[name].strip()
    if "://" not in given:
        given = f"http://{given}"
    proxy = Proxy(f"{name.upper()}_PROXY", given)
    _check(proxy, url)
    return proxy


def _check(proxy: Proxy, url: str) -> None:
    where = _split(proxy.address)
    advice = f"Correct it, or name the host of {url} in NO_PROXY."
    if (
        where is None
        or where.scheme not in _SCHEMES
        or not re.fullmatch(r"[\w.:-]+", where.hostname or "")
    ):
        raise ConfigurationError(
            f"{proxy.variable} must be the address of a proxy, such as http://HOST:PORT or "
            f"socks5://HOST:PORT, got {str(proxy).partition(' (')[0]!r}. {advice}"
        )
    if where.scheme in _SOCKS and find_spec("socksio") is None:
        raise ConfigurationError(
            f"{proxy.variable} names a SOCKS proxy, for which the package socksio is needed: "
            f"pip install socksio. Or name the host of {url} in NO_PROXY."
        )


def is_exempt(address: str) -> bool:
    """Whether a URL or host:port is reached without a proxy: it is on this machine, or an entry of
    NO_PROXY names it. An entry is `*`, a host, which names its subdomains too, an IPv4 or IPv6
    address, or a range of addresses as 10.0.0.0/8; a host or an address may have a port."""
    if environment.is_on_this_machine(address):
        return True
    where = _split(address)
    if where is None or where.hostname is None:
        return False
    entries = re.split(r"[,\s]+", getproxies().get("no", ""))
    return any(_names(entry.lower(), where) for entry in entries if entry)


def _names(entry: str, where: SplitResult) -> bool:
    """Whether this entry of NO_PROXY names the host, and the port where it has one."""
    if entry == "*":
        return True
    host = (where.hostname or "").rstrip(".")
    try:
        return _is_within(host, ipaddress.ip_network(entry, strict=False))
    except ValueError:
        named = _split(entry)
    if named is None or named.hostname is None:
        return False
    if named.port not in (None, where.port or _PORTS.get(where.scheme)):
        return False
    try:
        return _is_within(host, ipaddress.ip_network(named.hostname))
    except ValueError:
        name = named.hostname.removeprefix("*").strip(".")
        return bool(name) and (host == name or host.endswith(f".{name}"))


def _is_within(host: str, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address in network or (mapped is not None and mapped in network)


def _split(address: str) -> SplitResult | None:
    """A URL or host:port in its parts; None: it is neither."""
    if "//" not in address:
        address = f"//{address}"
    try:
        where = urlsplit(address)
        where.port  # noqa: B018  (raises where it is no number)
    except ValueError:
        return None
    return where
