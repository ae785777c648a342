"""Tokens of an OpenID Connect provider: taken as they are, renewed in time, and asked for by verified TLS only."""

import base64
import json
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from traceback import format_exception

import pytest
from aiohttp import web

from coil.kube import oidc
from coil.kube.client_config import ConfigError
from coil.kube.oidc import OidcTokens
from integration.cluster.pki import CertificateAuthority

NONE = Path("/nonexistent")


def token(*, ends_in: float | None, about: str = "me") -> str:
    claims: dict[str, object] = {"sub": about} | ({} if ends_in is None else {"exp": time.time() + ends_in})
    parts = (json.dumps(each, ensure_ascii=False).encode() for each in ({"alg": "none"}, claims))
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), "signature"])


class Provider:
    """Gives each refresh token once, as providers do that rotate them."""

    def __init__(self, *, endpoint: str = "") -> None:
        self.url = ""
        self.given = 0
        self.asked: list[tuple[str, str]] = []
        self.answer: object = None
        self.elsewhere = ""
        """Where whoever asks for a token is sent."""
        self._endpoint = endpoint
        application = web.Application()
        application.router.add_get("/.well-known/openid-configuration", self._describe)
        application.router.add_post("/token", self._renew)
        application.router.add_post("/elsewhere", self._stray)
        self.strayed: list[str] = []
        self.runner = web.AppRunner(application)

    async def _describe(self, _: web.Request) -> web.Response:
        return web.json_response({"token_endpoint": self._endpoint or f"{self.url}/token"})

    async def _renew(self, request: web.Request) -> web.Response:
        form = await request.post()
        if self.elsewhere:
            raise web.HTTPTemporaryRedirect(self.elsewhere)
        self.asked.append((request.headers["Authorization"], str(form["refresh_token"])))
        if form["grant_type"] != "refresh_token" or form["refresh_token"] != f"refresh-{self.given}":
            return web.json_response({"error": "invalid_grant"}, status=400)
        self.given += 1
        fresh = {"id_token": token(ends_in=0, about=str(self.given)), "refresh_token": f"refresh-{self.given}"}
        return web.json_response(fresh if self.answer is None else self.answer)

    async def _stray(self, request: web.Request) -> web.Response:
        self.strayed.append(await request.text())
        return web.json_response({"id_token": token(ends_in=3600)})


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("pki"), name="provider-ca")


@pytest.fixture
async def provider(authority: CertificateAuthority) -> AsyncIterator[Provider]:
    pair = authority.issue("provider", hosts=["127.0.0.1"])
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pair.certificate, pair.key)
    found = Provider()
    await found.runner.setup()
    await web.TCPSite(found.runner, "127.0.0.1", 0, ssl_context=tls).start()
    found.url = f"https://127.0.0.1:{found.runner.addresses[0][1]}"
    yield found
    await found.runner.cleanup()


def settings(provider: Provider, authority: CertificateAuthority, **changes: str) -> dict[str, str]:
    data = base64.b64encode(authority.certificate.read_bytes()).decode()
    return {
        "idp-issuer-url": provider.url,
        "client-id": "coil",
        "client-secret": "hidden",
        "refresh-token": "refresh-0",
        "idp-certificate-authority-data": data,
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }


@pytest.mark.parametrize("about", ["me", "ÿ??>>~", "a", "ab"])
@pytest.mark.parametrize("ends_in", [None, 3600.0])
async def test_a_token_that_is_good_is_taken(about: str, ends_in: float | None) -> None:
    given = token(ends_in=ends_in, about=about)
    assert await OidcTokens().find({"id-token": given}, NONE) == given


async def test_renewed_with_the_refresh_token_that_was_given_last(
    provider: Provider, authority: CertificateAuthority
) -> None:
    """The file has the first one for ever, as nothing is written to it."""
    tokens, asked = OidcTokens(), settings(provider, authority, id_token=token(ends_in=10))
    found = [await tokens.find(asked, NONE) for _ in range(3)]
    assert len(set(found)) == 3
    basic = f"Basic {base64.b64encode(b'coil:hidden').decode()}"
    assert provider.asked == [(basic, f"refresh-{number}") for number in range(3)]


async def test_a_renewed_token_is_kept_while_it_is_good(provider: Provider, authority: CertificateAuthority) -> None:
    tokens, asked = OidcTokens(), settings(provider, authority, client_secret="")
    good = token(ends_in=3600)
    provider.answer = {"id_token": good}
    assert [await tokens.find(asked, NONE) for _ in range(3)] == [good] * 3
    assert len(provider.asked) == 1


async def test_the_authority_may_be_a_file(provider: Provider, authority: CertificateAuthority) -> None:
    asked = settings(provider, authority, idp_certificate_authority=authority.certificate.name)
    del asked["idp-certificate-authority-data"]
    assert await OidcTokens().find(asked, authority.certificate.parent)


async def test_an_unknown_authority_is_told_nothing(provider: Provider, authority: CertificateAuthority) -> None:
    asked = settings(provider, authority)
    del asked["idp-certificate-authority-data"]
    with pytest.raises(ConfigError, match=r"gave no token .*CERTIFICATE_VERIFY_FAILED"):
        await OidcTokens().find(asked, NONE)
    assert provider.asked == []


async def test_plain_http_is_told_nothing(provider: Provider, authority: CertificateAuthority) -> None:
    with pytest.raises(ConfigError, match="is not https"):
        await OidcTokens().find(settings(provider, authority, idp_issuer_url="http://127.0.0.1:9"), NONE)
    provider._endpoint = "http://127.0.0.1:9/token"
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:9/token is not asked"):
        await OidcTokens().find(settings(provider, authority), NONE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"refresh_token": "used"}, "gave no token .*400.*log in again"),
        ({"refresh_token": ""}, "log in again"),
        ({"idp_certificate_authority_data": "***"}, "idp-certificate-authority-data"),
    ],
)
async def test_what_does_not_work_is_told(
    provider: Provider, authority: CertificateAuthority, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        await OidcTokens().find(settings(provider, authority, **changes), NONE)
    told = "".join(format_exception(raised.value))
    assert "Authorization" not in told, "the client's secret is in that header"


@pytest.mark.parametrize("answer", [{"access_token": "another"}, ["id_token"], "token"])
async def test_an_answer_without_a_token(provider: Provider, authority: CertificateAuthority, answer: object) -> None:
    provider.answer = answer
    with pytest.raises(ConfigError, match="gave no token"):
        await OidcTokens().find(settings(provider, authority), NONE)


async def test_a_redirect_is_not_followed(provider: Provider, authority: CertificateAuthority) -> None:
    """It would take the refresh token along."""
    provider.elsewhere = f"{provider.url}/elsewhere"
    with pytest.raises(ConfigError, match="gave no token"):
        await OidcTokens().find(settings(provider, authority), NONE)
    assert provider.strayed == []


async def test_a_provider_that_does_not_answer(
    provider: Provider, authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "SECONDS", 0.0)
    with pytest.raises(ConfigError, match="did not answer within"):
        await OidcTokens().find(settings(provider, authority), NONE)
