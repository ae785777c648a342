"""Replicas that share one Secret, whoever comes first."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
import structlog

from coil.admission.certificate import is_issued_by, split_bundle
from coil.admission.identity import Terms
from coil.admission.self_managed import ATTEMPTS, Secret, SelfManagedIdentity
from coil.kube.errors import UnavailableError
from tests.coil.admission.memory_secret import MemorySecret

NOW = datetime(2030, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


class CrowdedSecret(MemorySecret):
    """Everybody has read before anybody writes."""

    async def read(self) -> Secret | None:
        answer = await super().read()
        await asyncio.sleep(0)
        return answer


class ContestedSecret(MemorySecret):
    """Somebody else is always a little faster."""

    async def replace(self, before: Secret, files: Mapping[str, bytes]) -> None:
        self.put(self.files or {})
        await super().replace(before, files)


def replica(secret: MemorySecret, *, after: timedelta = timedelta()) -> SelfManagedIdentity:
    return SelfManagedIdentity(
        secret,
        name="test",
        hosts=["192.0.2.1"],
        now=lambda: NOW + after,
        terms=Terms(authority=100 * DAY, server=10 * DAY),
        log=structlog.get_logger(),
    )


async def test_the_first_makes_it_and_the_others_find_it() -> None:
    secret = MemorySecret()
    first, second = replica(secret), replica(secret)
    made = await first.fetch()
    found = await second.fetch()
    assert (made.wrote, found.wrote) == (True, False)
    assert (made.pair, made.bundle) == (found.pair, found.bundle)
    assert set(secret.files or {}) == {"tls.crt", "tls.key", "ca.crt", "ca.key"}
    assert secret.writes == 1


async def test_of_many_at_once_one_wins_and_all_agree() -> None:
    secret = CrowdedSecret()
    fetched = await asyncio.gather(*(replica(secret).fetch() for _ in range(5)))
    assert [each.wrote for each in fetched].count(True) == 1
    assert len({(each.pair.certificate, each.bundle) for each in fetched}) == 1
    assert secret.calls == {"read": 9, "create": 5, "replace": 0}


async def test_a_renewal_is_agreed_on_as_well() -> None:
    secret = CrowdedSecret()
    before = await replica(secret).fetch()
    fetched = await asyncio.gather(*(replica(secret, after=8 * DAY).fetch() for _ in range(5)))
    assert [each.wrote for each in fetched].count(True) == 1
    assert len({each.pair.certificate for each in fetched} - {before.pair.certificate}) == 1


async def test_whoever_loses_again_and_again_comes_back_later() -> None:
    secret = ContestedSecret()
    await replica(secret).fetch()
    with pytest.raises(UnavailableError, match="changed by others"):
        await replica(secret, after=8 * DAY).fetch()
    assert secret.calls["replace"] == ATTEMPTS


@pytest.mark.parametrize("loss", [None, {}, {"tls.crt": b"rubbish", "tls.key": b"", "ca.crt": b"", "ca.key": b""}])
async def test_a_lost_secret_is_made_anew_and_those_who_serve_from_it_stay_trusted(
    loss: dict[str, bytes] | None,
) -> None:
    secret = MemorySecret()
    source = replica(secret)
    before = await source.fetch()
    secret.put(loss)
    after = await source.fetch()
    assert after.wrote
    assert after.pair != before.pair
    assert any(is_issued_by(before.pair, authority) for authority, _ in split_bundle(after.bundle))
    assert not (await source.fetch()).wrote


async def test_other_content_of_the_secret_stays() -> None:
    secret = MemorySecret()
    secret.put({"note": b"from an admin"})
    await replica(secret).fetch()
    assert secret.files is not None
    assert secret.files["note"] == b"from an admin"


async def test_no_key_is_logged() -> None:
    with structlog.testing.capture_logs() as lines:
        secret = MemorySecret()
        source = SelfManagedIdentity(
            secret, name="test", hosts=["192.0.2.1"], now=lambda: NOW, log=structlog.get_logger()
        )
        await source.fetch()
        secret.put({**(secret.files or {}), "tls.key": b"-----BEGIN PRIVATE KEY-----\nsecret"})
        await source.fetch()
    assert [line["event"] for line in lines] == ["certificates renewed"] * 2
    assert "PRIVATE" not in str(lines)
