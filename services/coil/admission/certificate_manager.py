"""Keeps a webhook server's certificate fresh and trusted, for ever.

    source (Secret or folder) ──► webhook configurations ──► serving context ──► pause ──► source …

A look, not a watch: what can change here does so once a year or by accident, and one look is three small reads.
The configurations hear of a new authority before a server shows its certificate. When they cannot be told, the
certificate is served all the same: somebody else may see to the trust, and an old one would end one day.

The pause depends on what the last look did. Nothing to do: the period, less up to a tenth at random, so that replicas
do not look in step. A failure: a second, then less and less often, up to the period. A write: the period, doubled for
each further look in a row that had to write, up to an hour. So nothing that writes against us, a replica whose clock
is a century off or a controller that puts its own bundle back, makes a busy loop.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from coil.admission.ca_bundle import BundleInjector, Injection
from coil.admission.certificate import CertificateError, KeyPair, read_server, split_bundle
from coil.admission.server import AdmissionMetrics, ServingContext
from coil.kube.errors import ApiError
from coil.reconcile.backoff import Backoff


@dataclass(frozen=True, slots=True)
class Fetched:
    """What to serve, and the authorities to trust for it, PEM; empty if somebody else tells the API server.

    `wrote`: the source has changed what it read from.
    """

    pair: KeyPair
    bundle: bytes
    wrote: bool = False


class CertificateSource(Protocol):
    """Where the certificate comes from."""

    async def fetch(self) -> Fetched:
        """The present certificate. Raises CertificateError or ApiError; asked again after a pause."""
        ...


class CertificateFolder:
    """A CertificateSource: a folder which somebody else fills, as cert-manager and a mounted Secret do.

    It has `tls.crt` and `tls.key`, and `ca.crt` if the webhook configurations are to be told whom to trust. Files are
    replaced one after the other, so certificate and key may not match for a moment: such a pair is an error now, and no
    longer at the next look. The other source is `coil.admission.self_managed`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def fetch(self) -> Fetched:
        """What the files say now. Raises CertificateError."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> Fetched:
        pair = KeyPair(self._content("tls.crt"), self._content("tls.key"))
        bundle = self._content("ca.crt") if (self._folder / "ca.crt").exists() else b""
        try:
            read_server(pair)
            if bundle:
                split_bundle(bundle)
        except CertificateError as error:
            raise CertificateError(f"the certificate in {self._folder} is not usable: {error}") from error
        return Fetched(pair, bundle)

    def _content(self, name: str) -> bytes:
        try:
            return (self._folder / name).read_bytes()
        except OSError as error:
            raise CertificateError(f"{self._folder / name} cannot be read: {error.strerror}") from error


FIRST_RETRY = 1.0
LONGEST_PAUSE = 3600.0
_JITTER = 0.1


class Outcome(Enum):
    QUIET = "quiet"
    WROTE = "wrote"
    FAILED = "failed"


class CheckInterval:
    """Remembers how often in a row it went the same way. `period` is in seconds; `random` gives [0, 1)."""

    def __init__(self, period: float, random: Callable[[], float]) -> None:
        self._quiet = Backoff(base=period, cap=period, jitter=_JITTER)
        self._failed = Backoff(base=min(FIRST_RETRY, period), cap=period)
        self._wrote = Backoff(base=period, cap=max(period, LONGEST_PAUSE), jitter=_JITTER)
        self._random = random
        self._failures = 0
        self._writes = 0

    def next_delay(self, outcome: Outcome) -> float:
        """Seconds to wait after `outcome`; counts it."""
        if outcome is Outcome.FAILED:
            delay = self._failed.delay(self._failures, self._random)
            self._failures += 1
            return delay
        self._failures = 0
        if outcome is Outcome.WROTE:
            delay = self._wrote.delay(self._writes, self._random)
            self._writes += 1
            return delay
        self._writes = 0
        return self._quiet.delay(0, self._random)


class CertificateManager:
    """Run `run()` in one task. `now` is the wall clock, in UTC."""

    def __init__(
        self,
        source: CertificateSource,
        *,
        serving: ServingContext,
        injector: BundleInjector,
        interval: CheckInterval,
        now: Callable[[], datetime],
        metrics: AdmissionMetrics,
        log: FilteringBoundLogger,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._source = source
        self._serving = serving
        self._injector = injector
        self._interval = interval
        self._now = now
        self._sleep = sleep
        self._metrics = metrics
        self._log = log
        self._trouble = ""
        self._until: datetime | None = None
        self._trusted = False

    async def run(self) -> None:
        """Look again and again until cancelled. Failures are logged once each and tried again."""
        while True:
            await self._sleep(self._interval.next_delay(await self._look()))

    def check(self) -> str | None:
        """For `/readyz`: None when the API server can be answered, as far as this process knows."""
        if self._until is None:
            return f"no certificate yet: {self._trouble or 'not fetched'}"
        if self._now() >= self._until:
            return f"the certificate ended at {self._until:%Y-%m-%dT%H:%M:%SZ}: {self._trouble or 'not renewed'}"
        if not self._trusted:
            return f"the API server has not been told whom to trust: {self._trouble or 'not yet'}"
        return None

    async def _look(self) -> Outcome:
        troubles: list[str] = []
        wrote = False
        try:
            fetched = await self._source.fetch()
            wrote = fetched.wrote
            if fetched.bundle:
                injection = await self._inject(fetched.bundle, troubles)
                wrote = wrote or bool(injection.patched)
            self._trusted = self._trusted or not troubles
            self._serve(fetched)
        except (ApiError, CertificateError) as error:
            troubles.append(str(error))
        self._report(troubles)
        if troubles:
            return Outcome.FAILED
        return Outcome.WROTE if wrote else Outcome.QUIET

    async def _inject(self, bundle: bytes, troubles: list[str]) -> Injection:
        try:
            injection = await self._injector.inject(bundle)
        except ApiError as error:
            troubles.append(str(error))
            return Injection((), ())
        if injection.patched:
            self._log.info("the API server was told whom to trust", configurations=list(injection.patched))
        if injection.missing:
            # Whoever installs the configurations later should not have to wait for long.
            self._trusted = True
            troubles.append(f"there is no configuration yet: {', '.join(injection.missing)}")
        return injection

    def _serve(self, fetched: Fetched) -> None:
        if not self._serving.load(fetched.pair):
            return
        facts = read_server(fetched.pair)
        self._until = facts.validity.until
        self._metrics.certificate_end.set(self._until.timestamp())
        self._log.info("serving a new certificate", hosts=sorted(facts.hosts), until=self._until.isoformat())

    def _report(self, troubles: list[str]) -> None:
        trouble = "; ".join(troubles)
        if trouble == self._trouble:
            return
        self._trouble = trouble
        if trouble:
            self._log.warning("certificates are not as they should be", error=trouble)
        else:
            self._log.info("certificates are as they should be")
