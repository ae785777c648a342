"""Tokens of an OpenID Connect provider, renewed with the user's refresh token (`auth-provider` oidc of a kubeconfig).

kubernetes-asyncio asks the provider. By itself it verifies no certificate, or fails where the kubeconfig has the
provider's authority, and it waits without a bound: that is mended here. What is renewed stays in memory: a provider may
give each refresh token once, so that the file's is of no use after the first renewal.
"""

import asyncio
import base64
import binascii
import json
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus

import aiohttp

from coil.kube.client_config import ConfigError, decode_base64
from coil.kube.light_import import without_models
from coil.kube.proxy import find_proxy

with without_models():
    from kubernetes_asyncio.config import ConfigException
    from kubernetes_asyncio.config.openid import OpenIDRequestor

SECONDS: Final = 60.0
"""How long a renewal may take."""
_AUTHORITY: Final = "idp-certificate-authority-data"
_SKEW: Final = 300.0
"""A token that ends within these seconds is renewed, as the library has it."""


@dataclass(slots=True)
class OidcTokens:
    """The tokens of one kubeconfig's users, as they were renewed. Its keys are those that the file has."""

    _renewed: dict[tuple[str, str, str], tuple[str, str]] = field(default_factory=dict)

    async def find(self, settings: Mapping[str, str], folder: Path) -> str:
        """An id token that is good for some minutes more; names of files are relative to `folder`.

        Raises ConfigError, and OSError for the authority's file.
        """
        issuer, client = settings.get("idp-issuer-url", ""), settings.get("client-id", "")
        key = issuer, client, settings.get("refresh-token", "")
        known, refresh = self._renewed.get(key, (settings.get("id-token", ""), key[2]))
        if known and not _ends_soon(known):
            return known
        if not (issuer and client and refresh):
            raise ConfigError(
                "the id-token of OIDC has ended, and for another one idp-issuer-url, client-id and refresh-token are "
                "needed: log in again"
            )
        requestor = _Requestor(client, settings.get("client-secret", ""), issuer, _tls_context(settings, folder))
        try:
            async with asyncio.timeout(SECONDS):
                answer = await requestor.refresh_token(refresh)
            token, following = answer["id_token"], answer.get("refresh_token", refresh)
        except TimeoutError:
            raise ConfigError(f"the OIDC provider {issuer} did not answer within {SECONDS:g} s") from None
        except ConfigError:
            raise
        except (ConfigException, aiohttp.ClientError, LookupError, TypeError, AttributeError, ValueError) as error:
            # Not its representation: that of a response has the request's headers, and with them the client's secret.
            reason = error.__cause__ or error
            told = f"{type(reason).__name__}: {reason}"
            raise ConfigError(f"the OIDC provider {issuer} gave no token ({told}): log in again") from None
        self._renewed[key] = token, following
        return str(token)


class _Requestor(OpenIDRequestor):
    """Asks by verified TLS only, and goes nowhere else, as what is sent is worth as much as the token."""

    _ssl_ca_cert: ssl.SSLContext

    def _client_session(self) -> aiohttp.ClientSession:
        # RFC 6749, 2.3.1
        client, secret = quote_plus(self._client_id), quote_plus(self._client_secret)
        return aiohttp.ClientSession(
            headers={**self._default_headers, "Authorization": aiohttp.encode_basic_auth(client, secret)},
            connector=aiohttp.TCPConnector(ssl=self._ssl_ca_cert),
            raise_for_status=True,
        )

    async def _get(self, client: aiohttp.ClientSession, url: str, **keywords: Any) -> Any:
        return await super()._get(client, url, proxy=_proxy_of(url), allow_redirects=False, **keywords)

    async def _post(self, client: aiohttp.ClientSession, url: str, **keywords: Any) -> Any:
        return await super()._post(client, url, proxy=_proxy_of(url), allow_redirects=False, **keywords)


def _proxy_of(url: str) -> str | None:
    """Raises ConfigError where the URL is not to be asked at all."""
    if not url.startswith("https://"):
        raise ConfigError(f"{url} is not asked, as it is not https")
    return find_proxy(url, os.environ)


def _tls_context(settings: Mapping[str, str], folder: Path) -> ssl.SSLContext:
    if data := settings.get(_AUTHORITY):
        try:
            return ssl.create_default_context(cadata=decode_base64(data, what=_AUTHORITY).decode())
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{_AUTHORITY} is no certificate: {error}") from None
    file = settings.get("idp-certificate-authority")
    return ssl.create_default_context(cafile=folder / file if file else None)


def _ends_soon(token: str) -> bool:
    """By `exp` of a JSON Web Token (RFC 7519, 4.1.4). The server is who verifies it. Raises ConfigError."""
    parts = token.split(".")
    try:
        [_, payload, _] = parts
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        end = claims.get("exp")
        return end is not None and float(end) - _SKEW <= time.time()
    except (ValueError, AttributeError, TypeError, binascii.Error):
        raise ConfigError("the id-token of OIDC is no JSON Web Token") from None
