"""The certificate manager over simulated days and years: what it asks, how often it wakes, that nothing makes it spin.

The Go implementation's certificate rotation once went round and round at full speed; here each wake-up and each call
is counted.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
import structlog
from prometheus_client import CollectorRegistry

from coil.admission.ca_bundle import MUTATING, VALIDATING, BundleInjector
from coil.admission.certificate import CertificateError, KeyPair, issue_authority, issue_server
from coil.admission.certificate_manager import (
    LONGEST_PAUSE,
    CertificateManager,
    CertificateSource,
    CheckInterval,
    Fetched,
)
from coil.admission.identity import DEFAULT_TERMS, Terms
from coil.admission.self_managed import SelfManagedIdentity
from coil.admission.server import AdmissionMetrics, ServingContext
from coil.kube.errors import ForbiddenError, UnavailableError
from tests.coil.admission.memory_configuration import NAME, MemoryConfigurations
from tests.coil.admission.memory_secret import MemorySecret
from tests.coil.reconcile.virtual_time import run_virtual

BIRTH = datetime(2030, 1, 1, tzinfo=UTC)
PERIOD = 60.0
DAY = 86400.0
GONE = UnavailableError("the API server is away")


class TimeIsUpError(Exception):
    """The simulated span is over."""


def make_source(secret: MemorySecret, now: Callable[[], datetime], terms: Terms = DEFAULT_TERMS) -> SelfManagedIdentity:
    log = structlog.get_logger()
    return SelfManagedIdentity(secret, name="test", hosts=["192.0.2.1"], now=now, terms=terms, log=log)


def make_certificates(
    source: CertificateSource,
    *,
    api: MemoryConfigurations,
    now: Callable[[], datetime],
    sleep: Callable[[float], Awaitable[None]],
    serving: ServingContext | None = None,
    period: float = PERIOD,
) -> CertificateManager:
    return CertificateManager(
        source,
        serving=serving or ServingContext(),
        injector=BundleInjector(api, name=NAME),
        interval=CheckInterval(period, lambda: 0.0),
        now=now,
        metrics=AdmissionMetrics(CollectorRegistry()),
        log=structlog.get_logger(),
        sleep=sleep,
    )


@dataclass
class Life:
    """A certificate manager, what it talks to, and the time: `elapsed` seconds since BIRTH."""

    secret: MemorySecret = field(default_factory=MemorySecret)
    api: MemoryConfigurations = field(default_factory=MemoryConfigurations)
    period: float = PERIOD
    terms: Terms = DEFAULT_TERMS
    source: CertificateSource | None = None
    elapsed: float = 0.0
    wakes: int = 0
    end: float = 0.0
    each_wake: Callable[["Life"], None] = lambda _: None

    def __post_init__(self) -> None:
        self.serving = ServingContext()
        self.certificates = make_certificates(
            self.source or make_source(self.secret, self.now, self.terms),
            api=self.api,
            now=self.now,
            sleep=self.sleep,
            serving=self.serving,
            period=self.period,
        )

    def now(self) -> datetime:
        return BIRTH + timedelta(seconds=self.elapsed)

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.elapsed += seconds
        if self.elapsed > self.end:
            raise TimeIsUpError
        self.wakes += 1
        self.each_wake(self)

    async def pass_time(self, seconds: float) -> None:
        """Let it run for that long."""
        self.end = self.elapsed + seconds
        with pytest.raises(TimeIsUpError):
            await self.certificates.run()

    @property
    def calls(self) -> int:
        return sum(self.secret.calls.values()) + len(self.api.calls)

    @property
    def writes(self) -> int:
        return self.secret.writes + self.api.count("patch")


async def test_a_quiet_day() -> None:
    life = Life()
    await life.pass_time(DAY)
    assert life.certificates.check() is None
    assert life.wakes == DAY / PERIOD
    assert life.writes == 3, "the Secret and two configurations, once"
    assert life.calls == 3 * (life.wakes + 1) + 3, "a look is three reads"


async def test_twelve_years_at_two_looks_a_week() -> None:
    life = Life(period=DAY * 7 / 2)
    shown: list[str] = []

    def stays_good(life: Life) -> None:
        if trouble := life.certificates.check():
            shown.append(trouble)

    life.each_wake = stays_good
    years = 12
    await life.pass_time(years * 365 * DAY)
    assert shown == [], "never without a good certificate"
    # A server certificate lives a year and is renewed after eight months; an authority after six years and eight.
    assert 18 <= life.secret.writes <= 20
    assert life.api.count("patch") == 2 * 2
    assert life.calls <= 3 * (life.wakes + 1) + life.writes


@pytest.mark.parametrize("fault", [GONE, ForbiddenError("the role is too narrow", status=403)])
async def test_an_api_that_fails_for_two_days_is_asked_once_a_period(fault: UnavailableError | ForbiddenError) -> None:
    life = Life()
    life.secret.fault = fault
    await life.pass_time(2 * DAY)
    trouble = life.certificates.check()
    assert trouble is not None
    assert str(fault) in trouble
    assert life.calls == life.wakes + 1
    assert life.wakes <= 2 * DAY / PERIOD + 10, "the first retries come sooner"
    life.secret.fault = None
    await life.pass_time(PERIOD)
    assert life.certificates.check() is None


async def test_what_is_served_goes_on_when_the_api_fails_and_is_reported_when_it_ends() -> None:
    life = Life(terms=Terms(server=timedelta(days=3)))
    await life.pass_time(PERIOD)
    life.secret.fault = life.api.fault = GONE
    await life.pass_time(1 * DAY)
    assert life.certificates.check() is None
    await life.pass_time(3 * DAY)
    trouble = life.certificates.check()
    assert trouble is not None
    assert trouble.startswith("the certificate ended at 2030-01-04")
    assert life.calls <= 4 * DAY / PERIOD + 20
    life.secret.fault = life.api.fault = None
    await life.pass_time(PERIOD)
    assert life.certificates.check() is None


@pytest.mark.parametrize("wrong_by", [timedelta(days=-20_000), timedelta(days=20_000)], ids=["1975", "2084"])
def test_two_replicas_that_cannot_agree_on_the_year_fight_slowly(wrong_by: timedelta) -> None:
    """Each finds the other's certificates out of their time. Neither gives in, and neither hurries."""
    secret, api = MemorySecret(), MemoryConfigurations()

    async def live(wrong_by: timedelta) -> None:
        clock = asyncio.get_running_loop().time

        def now() -> datetime:
            return BIRTH + timedelta(seconds=clock()) + wrong_by

        await make_certificates(make_source(secret, now), api=api, now=now, sleep=asyncio.sleep).run()

    async def two_days() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * DAY):
                await asyncio.gather(live(timedelta()), live(wrong_by))

    run_virtual(two_days)
    longest = 2 * (2 * DAY / LONGEST_PAUSE + 7)
    assert 10 <= secret.writes <= longest, "an hour apart, after six doublings"
    assert secret.calls["read"] <= 2 * longest
    assert api.count("patch") <= 4 * longest


async def test_whoever_undoes_our_work_each_time_gets_it_done_hourly() -> None:
    life = Life()
    life.each_wake = lambda life: life.api.overwrite(b"mine")
    days = 2
    await life.pass_time(days * DAY)
    slow = days * DAY / LONGEST_PAUSE
    assert life.wakes <= slow + 7, "six doublings lead from a minute to an hour"
    assert life.api.count("patch") == 2 * (life.wakes + 1)


async def test_one_overwrite_is_repaired_at_the_next_look_and_the_pace_stays() -> None:
    life = Life()
    await life.pass_time(3 * PERIOD)
    (bundle,) = life.api.bundles()
    for _ in range(3):
        life.api.overwrite(b"")
        await life.pass_time(2 * PERIOD)
        assert life.api.bundles() == {bundle}
        await life.pass_time(2 * PERIOD)
    assert life.wakes >= 3 + 3 * 3


async def test_a_deleted_secret_is_made_again_and_both_authorities_are_trusted() -> None:
    life = Life()
    await life.pass_time(3 * PERIOD)
    (before,) = life.api.bundles()
    life.secret.put(None)
    await life.pass_time(2 * PERIOD)
    (after,) = life.api.bundles()
    assert before is not None
    assert after is not None
    assert after != before
    assert after.endswith(before)
    assert life.certificates.check() is None


async def test_configurations_that_come_later_do_not_wait_long_and_readiness_does_not_wait_for_them() -> None:
    life = Life()
    installed = {kind: life.api.take(kind) for kind in (MUTATING, VALIDATING)}
    await life.pass_time(2.0)
    assert life.certificates.check() is None
    assert life.secret.writes == 1
    for kind, configuration in installed.items():
        life.api.api.put(kind, configuration)
    await life.pass_time(4.0)
    assert None not in life.api.bundles()
    assert all(life.api.api.find(kind, NAME) for kind in (MUTATING, VALIDATING))


async def test_configurations_that_never_come_are_looked_for_once_a_period() -> None:
    life = Life()
    for kind in (MUTATING, VALIDATING):
        life.api.take(kind)
    await life.pass_time(DAY)
    assert life.wakes <= DAY / PERIOD + 10


class ScriptedSource:
    """Gives what it is told to."""

    def __init__(self, answer: Fetched | CertificateError) -> None:
        self.answer = answer

    async def fetch(self) -> Fetched:
        if isinstance(self.answer, CertificateError):
            raise self.answer
        return self.answer


def server_pair() -> KeyPair:
    authority = issue_authority("test", now=BIRTH, life=timedelta(days=100))
    return issue_server(authority, hosts=["192.0.2.1"], now=BIRTH, life=timedelta(days=90))


async def test_a_broken_source_is_reported_once_and_the_old_certificate_goes_on() -> None:
    source = ScriptedSource(Fetched(server_pair(), b""))
    life = Life(source=source)
    await life.pass_time(PERIOD)
    source.answer = CertificateError("the key is not the certificate's")
    with structlog.testing.capture_logs() as lines:
        life = Life(source=source)
        await life.pass_time(PERIOD)
        source.answer = Fetched(server_pair(), b"")
        await life.pass_time(PERIOD)
        source.answer = CertificateError("the key is not the certificate's")
        await life.pass_time(DAY)
    warnings = [line for line in lines if line["log_level"] == "warning"]
    assert len(warnings) == 2, "once at the start and once later"
    assert life.certificates.check() is None
    assert life.serving.loaded


async def test_without_a_bundle_no_configuration_is_touched() -> None:
    life = Life(source=ScriptedSource(Fetched(server_pair(), b"")))
    await life.pass_time(DAY)
    assert life.api.calls == []
    assert life.certificates.check() is None


async def test_a_certificate_is_served_even_if_nobody_can_be_told_whom_to_trust() -> None:
    """Somebody else may tell them, as cert-manager does."""
    life = Life(source=ScriptedSource(Fetched(server_pair(), b"bundle")))
    life.api.fault = ForbiddenError("not yours", status=403)
    await life.pass_time(PERIOD)
    assert life.serving.loaded
    trouble = life.certificates.check()
    assert trouble is not None
    assert "not yours" in trouble
