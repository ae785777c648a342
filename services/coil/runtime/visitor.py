"""Who may look at a page that has no password: a person or a program at this machine, and no web page of a stranger.

A page on localhost is in reach of every web site that a person there has open. Two things keep them out:
* a site whose name was made to resolve to this machine (DNS rebinding) sends its own name in the Host header, and is
  turned away: only `localhost`, a loopback address, the address that the connection came in on, and the host that the
  server was told to listen on are served;
* any other site may send requests, and a browser then shows it no answer: nothing here allows other origins, frames
  or embedding, and a request changes nothing.
"""

import re
from ipaddress import ip_address

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

_HOST = re.compile(r"(\[(?P<ipv6>[^\[\]]+)\]|(?P<name>[^:\[\]]+))(:[0-9]*)?")

_HEADERS = {
    hdrs.CACHE_CONTROL: "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def guard(bound: str) -> Middleware:
    """The middleware of a server that listens on the host `bound`. A page may set headers of its own before it."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            _check_host(request, bound)
            answer = await handler(request)
        except web.HTTPException as refusal:
            _protect(refusal)
            raise
        _protect(answer)
        return answer

    return check


def is_welcome(host: str, *, bound: str, arrived: str) -> bool:
    """Whether a request for that Host (with or without a port) is meant for this machine.

    `arrived` is the local address of its connection. The port does not matter: it may be a forwarded one.
    """
    if (match := _HOST.fullmatch(host)) is None:
        return False
    name = (match["ipv6"] or match["name"]).lower().removesuffix(".")
    if name in {"localhost", bound.lower(), arrived.lower()} - {""}:
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or str(address) in {bound, arrived}


def _check_host(request: web.Request, bound: str) -> None:
    hosts = request.headers.getall(hdrs.HOST, [])
    name = request.transport.get_extra_info("sockname") if request.transport else None
    arrived = name[0] if isinstance(name, tuple) else ""
    if len(hosts) != 1 or not is_welcome(hosts[0], bound=bound, arrived=arrived):
        raise web.HTTPMisdirectedRequest(text="This server is asked by the names of its own machine only.\n")


def _protect(answer: web.StreamResponse) -> None:
    for name, value in _HEADERS.items():
        answer.headers.setdefault(name, value)
