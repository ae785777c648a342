"""A real etcd as Coil v1 would have left it: a member of its own, with client certificates, and v1's keys in it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address

from integration.cluster.address import free_port
from integration.cluster.etcd import Etcd
from integration.cluster.https import Endpoint
from integration.cluster.pki import CertificateAuthority
from integration.cluster.programs import Program, locate
from integration.cluster.workspace import Workspace

_ADDRESS = IPv4Address("127.0.0.1")
_PER_REQUEST = 100


class V1Etcd:
    """Make it with `up`. Its keys are a test's own by their prefix."""

    def __init__(self, etcd: Etcd) -> None:
        self._etcd = etcd
        self._endpoint = Endpoint(address=str(_ADDRESS), port=etcd.port, authority=etcd.authority, identity=etcd.client)

    @classmethod
    @contextmanager
    def up(cls) -> Iterator[V1Etcd]:
        """Ends with the context."""
        with Workspace.create() as workspace:
            etcd = Etcd(
                workspace,
                program=locate((Program.ETCD,))[Program.ETCD],
                authority=CertificateAuthority(workspace.make_folder("pki", "etcd"), name="v1-etcd"),
                address=_ADDRESS,
                ports=(free_port(_ADDRESS, 2379), free_port(_ADDRESS, 2479)),
            )
            etcd.wait_ready()
            yield cls(etcd)

    @property
    def flags(self) -> list[str]:
        """What tells the migrator where it is."""
        return [
            f"--etcd-endpoints={self._etcd.url}",
            f"--etcd-tls-ca={self._etcd.authority}",
            f"--etcd-tls-cert={self._etcd.client.certificate}",
            f"--etcd-tls-key={self._etcd.client.key}",
        ]

    def put(self, prefix: str, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Store keys, without prefix, and values."""
        operations = [
            {"request_put": {"key": _text(prefix.encode() + key), "value": _text(value)}} for key, value in entries
        ]
        for first in range(0, len(operations), _PER_REQUEST):
            self._call("/v3/kv/txn", {"success": operations[first : first + _PER_REQUEST]})

    def clear(self, prefix: str) -> None:
        """Forget all keys that begin with it."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        self._call("/v3/kv/deleterange", {"key": _text(prefix.encode()), "range_end": _text(end.encode())})

    def revision(self) -> int:
        """It grows with each write, whoever's."""
        return self._etcd.revision()

    def _call(self, path: str, message: dict[str, object]) -> None:
        status, body = self._endpoint.request("POST", path, json.dumps(message).encode())
        assert status == 200, f"etcd answered {path} with {status}: {body.decode(errors='replace')}"


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
