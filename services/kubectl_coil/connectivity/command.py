"""`kubectl coil connectivity`, from the options to the exit code."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from coil.runtime.terminal import printable
from kubectl_coil.cluster import Reader
from kubectl_coil.connectivity.document import CheckDocument, ConnectivityDocument, Outcome
from kubectl_coil.connectivity.junit import render_junit
from kubectl_coil.connectivity.resources import NODES, CandidateNode
from kubectl_coil.connectivity.site import Site, open_site
from kubectl_coil.connectivity.tour import OutsideServer, Tour
from kubectl_coil.installation import find_homes
from kubectl_coil.options import Options, Output
from kubectl_coil.output import make_console, print_document
from kubectl_coil.status.resources import DAEMON_SETS

_DAEMON_SETS = ("coild", "coil-egress-agent-node")
_MARKS = {Outcome.PASSED: "ok", Outcome.FAILED: "FAILED", Outcome.SKIPPED: "skipped"}


class ConnectivityError(Exception):
    """It cannot be tried here; says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the user may choose; `image` "" is that of the cluster's Coil."""

    image: str = ""
    nodes: Sequence[str] = ()
    outside: Sequence[OutsideServer] = ()
    seconds: float = 120.0


async def try_connectivity(options: Options, wishes: Wishes) -> int:
    """Print a line for each check as it ends; the exit code is 0 if none has failed, 1 otherwise.

    Cancelled, it deletes what it has made. Raises ApiError, AccessError and ConnectivityError.
    """
    checks: list[CheckDocument] = []
    async with options.connect() as cluster:
        nodes = await _choose_nodes(cluster, wishes.nodes)
        image = wishes.image or await _find_image(cluster)
        say = _Narrator(options.output)
        site: Site | None = None
        try:
            async with open_site(cluster, image=image) as site:
                say.begin(site.namespace, nodes)
                async for check in Tour(site, nodes, wishes.outside, wishes.seconds).run():
                    checks.append(check)
                    say.tell(check)
        finally:
            if site is not None and site.left_over:
                say.leave(site.namespace)
    document = ConnectivityDocument(
        namespace=site.namespace,
        nodes=tuple(node.metadata.name for node in nodes),
        checks=tuple(checks),
        left_over=site.left_over,
    )
    say.end(document)
    return 0 if document.passed else 1


@dataclass(frozen=True, slots=True)
class _Narrator:
    """Lines for people while it lasts, or one document at its end."""

    output: Output

    def begin(self, namespace: str, nodes: Sequence[CandidateNode]) -> None:
        self._print(f"In the namespace {namespace}, on {' and '.join(node.metadata.name for node in nodes)}:")

    def tell(self, check: CheckDocument) -> None:
        what = " ".join(filter(None, (check.name, check.family)))
        ending = f": {check.detail}" if check.detail else ""
        self._print(f"{_MARKS[check.outcome]:8}{what}{ending}")

    def leave(self, namespace: str) -> None:
        # In every form of output: it is what is left to do.
        sys.stderr.write(
            f"kubectl coil: the namespace {namespace} is not gone yet: kubectl delete namespace {namespace}\n"
        )

    def end(self, document: ConnectivityDocument) -> None:
        match self.output:
            case Output.TABLE:
                failed = sum(check.outcome is Outcome.FAILED for check in document.checks)
                self._print(f"{len(document.checks)} checks, {failed} failed.")
            case Output.JUNIT:
                sys.stdout.write(render_junit(document))
            case _:
                print_document(document, self.output, lambda _: None)

    def _print(self, line: str) -> None:
        if self.output is Output.TABLE:
            make_console().print(printable(line))
            sys.stdout.flush()


async def _choose_nodes(cluster: Reader, wanted: Sequence[str]) -> list[CandidateNode]:
    """Two at most, the wanted ones first."""
    found = {node.metadata.name: node for node in await cluster.list(NODES)}
    for name in wanted:
        if name not in found:
            raise ConnectivityError(f"there is no node {name}")
    chosen = [found[name] for name in wanted] or sorted(
        (node for node in found.values() if node.usable), key=lambda node: node.metadata.name
    )
    if not chosen:
        raise ConnectivityError("no node is ready and takes pods without tolerations: choose some with --node")
    return chosen[:2]


async def _find_image(cluster: Reader) -> str:
    for namespace in await find_homes(cluster):
        for each in await cluster.list(DAEMON_SETS, namespace=namespace):
            if each.metadata.name in _DAEMON_SETS and each.spec.template.spec.containers:
                return each.spec.template.spec.containers[0].image
    raise ConnectivityError("Coil is not installed here, so its image is not known: give one with --image")
