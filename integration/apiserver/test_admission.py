"""Webhooks on a real kube-apiserver that calls real ipam-controllers: what is refused, in which words, and by whom.

A controller listens beside the API server, so the webhook configurations call it by address.
"""

import asyncio
import json
import re
import secrets
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from coil.admission.certificate import KeyPair, issue_authority, issue_server
from coil.crd.names import FINALIZER
from integration.apiserver.idle_crowd import await_crowd_dropped, idle_crowd, kinds_of_crowd
from integration.apiserver.ipam_world import STOP_TIMEOUT, Replica
from integration.apiserver.service_address import one_address
from integration.apiserver.spoilt_secret import spoil_certificates
from integration.apiserver.without_rules import without_rules
from integration.cluster.control_plane import ControlPlane, KubectlError
from integration.deployment import (
    POOLS_PATH,
    WEBHOOK_KINDS,
    apply,
    apply_webhooks,
    remove_webhooks,
)
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

SECRET = "coil-ipam-controller-webhook"  # noqa: S105 (a name)
FLAGS = ("--cert-check-interval=500ms", "--lease-duration=300s")
"""Certificates are looked at often; and whoever leads leads to the end, since after its death nobody else can."""

CALLED = 'admission webhook "validate.addresspool.coil.cybozu.com" denied the request: '


class Door:
    """An API server whose pools are judged by `replica`; makes pools of names of its own, which go with it."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.prefix = f"door-{secrets.token_hex(3)}"
        self.replicas = [self._start()]
        self.replica.service.wait_ready()

    @property
    def replica(self) -> Replica:
        """The one that the API server calls, unless there is `another`."""
        return self.replicas[0]

    @contextmanager
    def another(self, *flags: str, everywhere: bool = False) -> Iterator[Replica]:
        """One more replica, which the API server calls in the meantime; `everywhere`: it listens at all addresses."""
        replica = self._start(*flags, everywhere=everywhere)
        self.replicas.append(replica)
        try:
            replica.service.wait_ready()
            yield replica
        finally:
            replica.service.process.stop(timeout=STOP_TIMEOUT)
            self.restore()

    def restore(self) -> None:
        """Have the API server call the first replica, alive."""
        apply_webhooks(self.plane, port=self.replica.webhook_port)
        self.replica.service.ensure_running()

    def _start(self, *flags: str, everywhere: bool = False) -> Replica:
        name = f"{self.prefix}-{secrets.token_hex(2)}"
        return Replica(self.plane, name, *FLAGS, *flags, everywhere=everywhere)

    def pool(self, name: str, *subnets: dict[str, str], bits: int = 5) -> dict[str, Any]:
        return pool_document(f"{self.prefix}-{name}", *subnets, bits=bits)

    def post(self, pool: dict[str, Any], *, pretend: bool = True) -> tuple[int, dict[str, Any]]:
        """Create a pool, by default in pretence: status and answer."""
        path = f"{POOLS_PATH}?dryRun=All" if pretend else POOLS_PATH
        status, body = self.plane.request("POST", path, json.dumps(pool).encode())
        return status, json.loads(body)

    def is_open(self) -> bool:
        """Whether a good pool passes, and was in the hands of the webhooks."""
        status, answer = self.post(self.pool("good", {"ipv4": "10.250.0.0/24"}))
        return status == 201 and answer["metadata"].get("finalizers") == [FINALIZER]

    def refusal(self, *arguments: str, document: dict[str, Any] | None = None) -> str:
        """What kubectl says when it is refused something."""
        with pytest.raises(KubectlError) as error:
            self.plane.kubectl(*arguments, stdin=json.dumps(document or {}))
        said = str(error.value).partition("exit code 1: ")[2]
        # From 1.29 on a server warns of finalizers without a path; this one is Coil v2's.
        return "\n".join(line for line in said.splitlines() if not line.startswith("Warning: metadata.finalizers: "))

    def bundles(self) -> set[str]:
        """caBundle of each webhook."""
        found = json.loads(self.plane.kubectl("get", ",".join(WEBHOOK_KINDS), "--output=json"))["items"]
        mine = (item for item in found if item["metadata"]["name"] == "coil-ipam-controller")
        return {webhook["clientConfig"].get("caBundle", "") for item in mine for webhook in item["webhooks"]}

    def overwrite(self, bundle: str) -> None:
        patch = [{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}]
        for kind in WEBHOOK_KINDS:
            self.plane.kubectl("patch", kind, "coil-ipam-controller", "--type=json", f"--patch={json.dumps(patch)}")

    def close(self) -> None:
        for replica in self.replicas:
            replica.service.process.stop(timeout=STOP_TIMEOUT)
        remove_webhooks(self.plane)
        remove_pools(self.plane, self.prefix)
        # Whoever was killed still holds it.
        self.plane.kubectl("delete", "lease", "coil-ipam-controller", "--namespace=kube-system", "--ignore-not-found")
        said = [line for replica in self.replicas for line in replica.lines()]
        assert [line for line in said if "orbidden" in str(line)] == [], "the role is too narrow"
        assert [line for line in said if line["level"] == "error"] == []
        assert "PRIVATE" not in str(said)


def pool_document(name: str, *subnets: dict[str, str], bits: int = 5) -> dict[str, Any]:
    spec = {"blockSizeBits": bits, "subnets": list(subnets)}
    return {"apiVersion": "coil.cybozu.com/v2", "kind": "AddressPool", "metadata": {"name": name}, "spec": spec}


def remove_pools(plane: ControlPlane, prefix: str) -> None:
    names = plane.kubectl("get", "addresspools", "--output=name").split()
    for name in (name for name in names if f"/{prefix}" in name):
        plane.kubectl("patch", name, "--type=merge", '--patch={"metadata":{"finalizers":null}}')
        plane.kubectl("delete", name, "--ignore-not-found")


@pytest.fixture(scope="module")
def bad_old_pools(plane: ControlPlane) -> Iterator[list[str]]:
    """From a time without webhooks, and without rules in the custom resource definition."""
    prefix = f"old-{secrets.token_hex(3)}"
    made = [
        pool_document(f"{prefix}-nonsense", {"ipv4": "10.240.0.999/24"}),
        pool_document(f"{prefix}-mixed", {"ipv4": "10.241.0.0/24"}, {"ipv6": "fd41::/120"}),
        pool_document(f"{prefix}-twice-a", {"ipv4": "10.242.0.0/24"}),
        pool_document(f"{prefix}-twice-b", {"ipv4": "10.242.0.0/24"}),
    ]
    with without_rules(plane):
        apply(plane, *made)
    yield [pool["metadata"]["name"] for pool in made]
    remove_pools(plane, prefix)


@pytest.fixture(scope="module")
def door(plane: ControlPlane, bad_old_pools: list[str]) -> Iterator[Door]:
    """One controller for all tests; each leaves it at work."""
    door = Door(plane)
    yield door
    door.close()


def test_a_new_pool_has_the_finalizer_from_its_birth(door: Door) -> None:
    status, answer = door.post(door.pool("new", {"ipv4": "10.250.0.0/24"}))
    assert (status, answer["metadata"]["finalizers"]) == (201, [FINALIZER])


def test_a_refusal_as_kubectl_prints_it(door: Door) -> None:
    pool = door.pool("bad", {"ipv4": "10.250.0.999/24"}, {"ipv4": "127.0.0.0/24"})
    said = door.refusal("create", "--filename=-", document=pool)
    assert said.splitlines() == [
        f'The AddressPool "{pool["metadata"]["name"]}" is invalid: ',
        "* spec.subnets[0].ipv4: '10.250.0.999/24' is not a network in CIDR notation",
        "* spec.subnets[1].ipv4: 127.0.0.0/24 has addresses that no pod can have: 127.0.0.0/8 (loopback)",
    ]


def test_a_refusal_as_programs_get_it(door: Door) -> None:
    pool = door.pool("bad", {"ipv4": "10.250.0.999/24"})
    status, answer = door.post(pool)
    message = "'10.250.0.999/24' is not a network in CIDR notation"
    name = pool["metadata"]["name"]
    assert (status, answer["reason"]) == (422, "Invalid")
    assert answer["message"] == (
        f'{CALLED}AddressPool.coil.cybozu.com "{name}" is invalid: spec.subnets[0].ipv4: {message}'
    )
    cause = {"reason": "FieldValueInvalid", "field": "spec.subnets[0].ipv4", "message": message}
    details = {"group": "coil.cybozu.com", "kind": "AddressPool", "name": name, "causes": [cause]}
    assert answer["details"] == details


@pytest.mark.parametrize(
    ("subnets", "bits", "field", "message"),
    [
        ([{}], 5, "spec.subnets[0]", "must have an ipv4 or an ipv6 network"),
        ([{"ipv4": "10.250.0.999/24"}], 5, "spec.subnets[0].ipv4", "is not a network in CIDR notation"),
        ([{"ipv6": "fd50:::/64"}], 5, "spec.subnets[0].ipv6", "is not a network in CIDR notation"),
        ([{"ipv6": "fd50::1/16"}], 5, "spec.subnets", "more blocks than an index of 64 bits can number"),
        ([{"ipv4": "10.250.0.0/28"}], 5, "spec.subnets[0].ipv4", "smaller than a block of 2^"),
        ([{"ipv4": "10.250.0.0/24", "ipv6": "fd50::/112"}], 5, "spec.subnets[0]", "must hold equally many addresses"),
        ([{"ipv4": "10.250.0.0/24"}, {"ipv6": "fd50::/120"}], 5, "spec.subnets[1]", "same address families"),
        ([{"ipv4": "10.250.0.0/16"}, {"ipv4": "10.250.7.0/24"}], 5, "spec.subnets[1].ipv4", "overlaps 10.250.0.0/16"),
        ([{"ipv6": "fd50::/32"}], 5, "spec.subnets", "more blocks than an index of 64 bits can number"),
        ([{"ipv4": "10.242.0.128/25"}], 5, "spec.subnets[0].ipv4", "overlaps 10.242.0.0/24 of the pool"),
    ],
)
def test_each_rule_names_its_field(
    door: Door, subnets: list[dict[str, str]], bits: int, field: str, message: str
) -> None:
    """Whoever speaks first: the API server by its rules, or the webhook. A rule's field has no position."""
    status, answer = door.post(door.pool("bad", *subnets, bits=bits))
    assert status == 422
    fields = {field} if answer["message"].startswith(CALLED) else {field, "spec.subnets"}
    told = [cause for cause in answer["details"]["causes"] if message in cause["message"]]
    assert [cause["field"] for cause in told if cause["field"] in fields], answer["details"]["causes"]


def test_a_name_that_is_no_label_is_refused(door: Door) -> None:
    status, answer = door.post(door.pool("x" * 63, {"ipv4": "10.250.0.0/24"}))
    assert status == 422
    assert "metadata.name: must be no more than 63 characters" in answer["message"]


def test_a_pool_may_grow_at_its_end_and_in_no_other_way(door: Door) -> None:
    pool = door.pool("grows", {"ipv4": "10.251.0.0/24"})
    assert door.post(pool, pretend=False)[0] == 201
    name = pool["metadata"]["name"]

    def patched(spec: dict[str, Any]) -> str:
        return door.refusal("patch", "addresspool", name, "--type=merge", f"--patch={json.dumps({'spec': spec})}")

    assert says("spec.blockSizeBits: is immutable", patched({"blockSizeBits": 6}))
    other = {"subnets": [{"ipv4": "10.252.0.0/24"}]}
    assert says("spec.subnets[0]: is immutable; new subnets go to the end", patched(other))
    grown = [{"ipv4": "10.251.0.0/24"}, {"ipv4": "10.251.0.0/25"}]
    assert "spec.subnets[1].ipv4: 10.251.0.0/25 overlaps 10.251.0.0/24" in patched({"subnets": grown})
    good = {"spec": {"subnets": [{"ipv4": "10.251.0.0/24"}, {"ipv4": "10.251.1.0/24"}]}}
    door.plane.kubectl("patch", "addresspool", name, "--type=merge", f"--patch={json.dumps(good)}")
    assert says("spec.subnets[1]: must not be removed", patched({"subnets": [{"ipv4": "10.251.0.0/24"}]}))


def says(sentence: str, refusal: str) -> bool:
    """Whether kubectl prints it; as a rule has it, it has the value in it, and no position."""
    field, _, message = sentence.partition(": ")
    value, bracket, position = field.partition("[")
    place = re.escape(value) + f"({re.escape(bracket + position)})?"
    return bool(re.search(rf"{place}: (Invalid value: (\S+: )?)?{re.escape(message)}$", refusal, re.MULTILINE))


@kinds_of_crowd
def test_idle_connections_do_not_silence_admission(door: Door, version: int, tls: bool) -> None:
    with door.another(everywhere=True) as replica:
        # The crowd is there first: a connection that the API server had open already would be in nobody's way.
        replica.service.crash()
        host, port = str(door.plane.address), replica.webhook_port
        wait_until(replica.is_ready, what="the replica is ready")
        with idle_crowd(host, port, version=version, tls=tls):
            # The first call may go by a connection to the process before.
            assert any(door.is_open() for _ in range(3)), "the API server gets no answer"
            status, answer = door.post(door.pool("bad", {"ipv4": "10.250.0.999/24"}))
            assert (status, answer["reason"]) == (422, "Invalid")
            await_crowd_dropped(replica.metrics)


def test_bad_old_pools_can_be_labelled_and_deleted(door: Door, bad_old_pools: list[str]) -> None:
    door.plane.kubectl("label", "addresspools", *bad_old_pools, "team=network")
    door.plane.kubectl("delete", "addresspools", *bad_old_pools[:3], "--timeout=180s")


def test_an_overwritten_bundle_is_repaired(door: Door) -> None:
    (before,) = door.bundles()
    door.overwrite("bm9uc2Vuc2U=")
    wait_until(lambda: door.bundles() == {before}, what="the repair of caBundle")
    wait_until(door.is_open, what="a pool that passes")


def test_a_deleted_secret_is_made_anew(door: Door) -> None:
    (before,) = door.bundles()
    door.plane.kubectl("delete", "secret", SECRET, "--namespace=kube-system")

    def renewed() -> bool:
        return door.bundles() not in ({before}, {""})

    wait_until(renewed, what="a new authority")
    wait_until(door.is_open, what="a pool that passes")
    secret = json.loads(door.plane.kubectl("get", "secret", SECRET, "--namespace=kube-system", "--output=json"))
    assert secret["type"] == "kubernetes.io/tls"
    assert set(secret["data"]) == {"tls.crt", "tls.key", "ca.crt", "ca.key"}
    (bundle,) = door.bundles()
    assert bundle == secret["data"]["ca.crt"]
    # Other replicas still show what the old authority has signed.
    assert len(bundle) > len(before)


def test_a_spoilt_secret_is_mended(door: Door) -> None:
    spoil_certificates(door.plane, SECRET)
    wait_until(door.is_open, what="a pool that passes")


def test_while_nobody_answers_no_pool_passes_and_without_webhooks_the_schema_still_does_its_part(door: Door) -> None:
    good = door.pool("good", {"ipv4": "10.250.0.0/24"})
    try:
        door.replica.service.kill()
        said = door.refusal("create", "--filename=-", document=good)
        assert 'failed calling webhook "mutate.addresspool.coil.cybozu.com"' in said
        remove_webhooks(door.plane)
        status, answer = door.post(door.pool("bad", {"ipv4": "nonsense"}))
        assert status == 422
        # Before 1.22 without the position.
        assert answer["details"]["causes"][0]["field"].replace("[0]", "") == "spec.subnets.ipv4"
        assert door.post(door.pool("bad"))[0] == 422
        assert door.post(door.pool("bad", *({"ipv4": f"10.0.{n}.0/24"} for n in range(257))))[0] == 422
        assert door.post(good)[0] == 201
    finally:
        door.restore()
    assert door.is_open()


async def test_every_replica_answers_and_the_death_of_one_is_not_noticed(door: Door) -> None:
    """The API server calls one address for both, as it does where a Service stands before them."""
    first = door.replica
    with door.another() as second:
        async with one_address(str(door.plane.address), [first.webhook_port]) as service:
            await asyncio.to_thread(apply_webhooks, door.plane, port=service.port)
            await asyncio.to_thread(wait_until, lambda: answered(door, first), what="an answer of the first")
            service.ports = [first.webhook_port, second.webhook_port]
            first.service.kill()
            # The API server may send a review down its connection to the dead one before it has read the end of that.
            await asyncio.to_thread(wait_until, lambda: answered(door, second), what="an answer of the other one")
            status, answer = await asyncio.to_thread(door.post, door.pool("bad", {"ipv4": "10.250.0.999/24"}))
            assert (status, answer["message"][: len(CALLED)]) == (422, CALLED)
        assert not second.has_logged("leading"), "it did not have to, nor could it yet"


def answered(door: Door, replica: Replica) -> bool:
    """Whether a pool passes, and it was this replica who let it."""

    def reviews() -> float:
        samples = replica.metrics()
        return sum(value for name, value in samples.items() if name.startswith("coil_admission_reviews_total"))

    before = reviews()
    return door.is_open() and reviews() == before + 2


def test_certificates_of_a_folder_are_followed(door: Door, tmp_path: Path) -> None:
    address = str(door.plane.address)
    authority = write_folder(tmp_path, address)
    # It manages its own certificates, and the two would not agree on whom to trust.
    door.replica.service.kill()
    with door.another(f"--cert-dir={tmp_path}") as replica:
        port = replica.webhook_port
        first = shown(address, port, authority)
        assert first is not None

        # Half of a change: the key is replaced and the certificate not yet.
        good = (tmp_path / "tls.key").read_bytes()
        (tmp_path / "tls.key").write_bytes(issue(address)[1].key)
        wait_until(lambda: replica.has_logged("certificates are not as they should be"), what="a word about it")
        assert shown(address, port, authority) == first
        assert door.is_open()
        (tmp_path / "tls.key").write_bytes(good)
        wait_until(lambda: replica.has_logged("certificates are as they should be"), what="a word about its end")

        second = write_folder(tmp_path, address)
        wait_until(lambda: shown(address, port, second), what="the new certificate")
        wait_until(door.is_open, what="a pool that passes under the new authority")
        assert shown(address, port, authority) is None, "what the old authority has signed is not shown any more"
        complaints = [line for line in replica.lines() if line["event"] == "certificates are not as they should be"]
        assert len(complaints) == 1, "one line, however often it was looked at"


def issue(host: str) -> tuple[bytes, KeyPair]:
    """A new authority, and a server certificate of it."""
    now = datetime.now(UTC)
    authority = issue_authority("test", now=now, life=timedelta(days=2))
    return authority.certificate, issue_server(authority, hosts=[host], now=now, life=timedelta(days=1))


def write_folder(folder: Path, host: str) -> bytes:
    """Fill it as cert-manager does; returns the authority."""
    authority, pair = issue(host)
    staged = folder / "..staged"
    staged.mkdir(exist_ok=True)
    for name, content in (("tls.crt", pair.certificate), ("tls.key", pair.key), ("ca.crt", authority)):
        (staged / name).write_bytes(content)
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (staged / name).replace(folder / name)
    return authority


def shown(host: str, port: int, authority: bytes) -> bytes | None:
    """The certificate that a client is shown who trusts `authority`, DER; None if it is not that authority's."""
    context = ssl.create_default_context(cadata=authority.decode())
    try:
        with (
            socket.create_connection((host, port), timeout=60) as plain,
            context.wrap_socket(plain, server_hostname=host) as tls,
        ):
            return tls.getpeercert(binary_form=True)
    except ssl.SSLCertVerificationError:
        return None
