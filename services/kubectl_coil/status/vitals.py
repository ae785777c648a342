"""What Coil's programs tell of themselves in their metrics: the age of their caches, the end of their certificate, and
how many pods egress NAT serves.

Every replica of a controller is asked, the programs of some nodes, and a router of some Egresses: in a large cluster
that is a sample. It takes the right to execute something in their pods; without it, nothing is known.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from prometheus_client.parser import text_string_to_metric_families

from coil.crd.names import APP_NAME, COMPONENT_EGRESS, LABEL_APP_COMPONENT, LABEL_APP_NAME
from coil.crd.resource import NamespacedName
from coil.kube.errors import ApiError, ForbiddenError
from kubectl_coil.cluster import ExecError, Executor, Reader
from kubectl_coil.program import PROGRAMS, Program, read_metrics

CONTROLLERS: Final = ("ipam-controller", "egress-controller", "raven")
"""Components of which every pod is asked."""
MOST_NODES: Final = 8
MOST_ROUTERS: Final = 8
SECONDS: Final = 10.0
"""For one program to answer."""
_APP: Final = f"{LABEL_APP_NAME}={APP_NAME}"
_RUNNING: Final = "status.phase=Running"
_CONTACT: Final = "informer_last_contact_timestamp_seconds"
_CERTIFICATE: Final = "coil_admission_certificate_end_timestamp_seconds"
_PEERS: Final = "coil_egress_peers"
_BLOCKED: Final = "coil_node_egress_blocked_pods"


class Access(Reader, Executor, Protocol):
    """What it takes to ask programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """Of one pod. What it does not tell is None, and all of it if it could not be asked: `error` says why."""

    program: Program
    cache_age: timedelta | None = None
    """Since the cache that has waited longest has heard the API server."""
    certificate_end: datetime | None = None
    client_addresses: int | None = None
    """Of a router."""
    blocked_pods: int | None = None
    """Of a node: those whose Egress nobody serves."""
    error: str = ""


async def survey(cluster: Access, *, homes: Sequence[str], nodes: Sequence[str], now: datetime) -> list[Vitals]:
    """Ask them side by side, in the namespaces that Coil is installed in, and on `MOST_NODES` of the nodes.

    Those that may not be asked are left out. Raises ApiError if the pods cannot be listed.
    """
    programs: dict[NamespacedName, Program] = {}
    for found in await asyncio.gather(*_list_programs(cluster, homes, spread(nodes, MOST_NODES))):
        programs |= {program.key: program for program in found}
    routers = {(each.metadata.namespace, each.instance): each for each in programs.values() if _is_router(each)}
    asked = [each for each in programs.values() if not _is_router(each)]
    asked += list(routers.values())[:MOST_ROUTERS]
    answers = await asyncio.gather(*(_ask(cluster, program, now) for program in asked))
    return [answer for answer in answers if answer is not None]


def spread(names: Sequence[str], most: int) -> list[str]:
    """So many of them, the first and the last included, from all over the list."""
    if len(names) <= most:
        return list(names)
    step = (len(names) - 1) / (most - 1)
    return [names[round(number * step)] for number in range(most)]


def _list_programs(cluster: Reader, homes: Sequence[str], nodes: Sequence[str]) -> Iterator[Any]:
    for home in homes:
        for component in CONTROLLERS:
            labels = f"{_APP},{LABEL_APP_COMPONENT}={component}"
            yield cluster.list(PROGRAMS, namespace=home, labels=labels, fields=_RUNNING)
        for node in nodes:
            yield cluster.list(PROGRAMS, namespace=home, labels=_APP, fields=f"spec.nodeName={node},{_RUNNING}")
    yield cluster.list(PROGRAMS, labels=f"{_APP},{LABEL_APP_COMPONENT}={COMPONENT_EGRESS}", fields=_RUNNING)


async def _ask(cluster: Executor, program: Program, now: datetime) -> Vitals | None:
    """None where that is forbidden."""
    container = next((each for each in program.spec.containers if each.metrics), None)
    if container is None:
        return Vitals(program=program)
    try:
        return read_vitals(program, (await read_metrics(cluster, program, container, seconds=SECONDS)).decode(), now)
    except ForbiddenError:
        return None
    except (ApiError, ExecError, ValueError) as error:
        return Vitals(program=program, error=str(error))


def read_vitals(program: Program, metrics: str, now: datetime) -> Vitals:
    """From Prometheus' text format. Raises ValueError.

    Routers are in tenants' namespaces, so they are not believed to write nothing but sensible numbers.
    """
    values: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            values.setdefault(sample.name, []).append(sample.value)
    contact, end, peers, blocked = (values.get(name) for name in (_CONTACT, _CERTIFICATE, _PEERS, _BLOCKED))
    try:
        return Vitals(
            program=program,
            cache_age=max(timedelta(), now - datetime.fromtimestamp(min(contact), UTC)) if contact else None,
            certificate_end=datetime.fromtimestamp(min(end), UTC) if end and min(end) else None,
            client_addresses=round(peers[0]) if peers else None,
            blocked_pods=round(blocked[0]) if blocked else None,
        )
    except (OverflowError, OSError) as error:
        raise ValueError(f"its metrics are no sensible numbers: {error}") from None


def _is_router(program: Program) -> bool:
    return program.component == COMPONENT_EGRESS
