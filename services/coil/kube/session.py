"""How connections to the API server are made: TLS, the way through a proxy, and their number.

Between the credentials (`access`) and `transport`. aiohttp's sessions are made here and not by the library, whose own
look up the environment's proxies and ~/.netrc for each request, in a thread: half of what a call costs. The environment
of a process does not change, so it is asked once.
"""

import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from coil.kube.kubeconfig import ClientConfig

READ_BUFFER = 2**21
"""A list's page or a burst of events should not stop the reading."""


class Session:
    """A pool of connections; `limit` at most, 0 for as many as are wanted."""

    def __init__(self, config: ClientConfig, context: ssl.SSLContext, *, limit: int) -> None:
        self._server = config.server
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=limit, ssl=context),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_BUFFER,
            trust_env=False,
        )
        self._options: dict[str, Any] = {
            "proxy": _proxy(config),
            "server_hostname": config.tls_server_name or None,
        }

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str],
        body: bytes | None,
        bounds: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """The response as soon as its headers are there, whatever its status. `path` is quoted, `query` plain."""
        suffix = f"?{urlencode(query)}" if query else ""
        # Quoted once: a continue token must come back as it was given, and quoting again takes time.
        url = URL(f"{self._server}{path}{suffix}", encoded=True)
        return await self._session.request(method, url, headers=headers, data=body, timeout=bounds, **self._options)

    async def close(self) -> None:
        """Close its connections, also those in use."""
        await self._session.close()


def tls_context(config: ClientConfig) -> ssl.SSLContext:
    """Raises OSError (ssl.SSLError is one) when the files are no certificates."""
    context = ssl.create_default_context(cafile=config.authority)
    if config.certificate is not None:
        context.load_cert_chain(config.certificate, keyfile=config.key)
    if not config.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _proxy(config: ClientConfig) -> str | None:
    """The kubeconfig's own, else the environment's for this server (HTTPS_PROXY, NO_PROXY)."""
    if config.proxy:
        return config.proxy
    server = urlsplit(config.server)
    if proxy_bypass(server.netloc):
        return None
    return getproxies().get(server.scheme)
