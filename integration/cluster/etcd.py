"""The store behind an API server: one etcd member, with client certificates asked for on both its ports."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from integration.cluster.family import Address, host_in_url
from integration.cluster.https import Endpoint
from integration.cluster.pki import CertificateAuthority
from integration.cluster.process import Process
from integration.cluster.workspace import Workspace

START_TIMEOUT = 180.0  # seconds

_FIRST_KEY, _LAST_KEY = (base64.b64encode(key).decode() for key in (b"/registry/", b"/registry0"))
"""Of objects, and the one behind them. An API server keeps its own notes on compaction elsewhere."""
_TRANSACTION = 100
"""Changes; etcd takes 128 of them (--max-txn-ops)."""


class EtcdError(Exception):
    """etcd refused a request; the message has its answer."""


class Etcd:
    """A running etcd. Its data is worth nothing after the run, so it waits for the disk only if it must."""

    def __init__(
        self,
        workspace: Workspace,
        *,
        program: Path,
        authority: CertificateAuthority,
        address: Address,
        ports: tuple[int, int],
        entrance: Sequence[str] = (),
    ) -> None:
        client, peer = (f"https://{host_in_url(address)}:{port}" for port in ports)
        server = authority.issue("etcd", hosts=[str(address)])
        self.url = client
        self.port = ports[0]
        self.authority = authority.certificate
        self.client = authority.issue("kube-apiserver-etcd-client")
        self._endpoint = Endpoint(
            address=str(address), port=ports[0], authority=authority.certificate, identity=self.client
        )
        self._process: Process = workspace.spawn(
            "etcd",
            [
                *entrance,
                str(program),
                "--name=coil",
                f"--data-dir={workspace.folder / 'etcd'}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=coil={peer}",
                "--client-cert-auth",
                f"--trusted-ca-file={authority.certificate}",
                f"--cert-file={server.certificate}",
                f"--key-file={server.key}",
                "--peer-client-cert-auth",
                f"--peer-trusted-ca-file={authority.certificate}",
                f"--peer-cert-file={server.certificate}",
                f"--peer-key-file={server.key}",
                *_unsafe_flags(program),
            ],
        )

    def wait_ready(self) -> None:
        """Return when it answers. Raises ComponentError with its log otherwise."""
        self._process.wait_ready(lambda: self._endpoint.is_ready("/health"), timeout=START_TIMEOUT)

    def revision(self) -> int:
        """The store's current revision."""
        # "\0" as key and range_end is the whole key space; a limit keeps the answer small (etcd's API, RangeRequest).
        answer = self._call("/v3/kv/range", {"key": "AA==", "range_end": "AA==", "limit": 1, "keys_only": True})
        return int(answer["header"]["revision"])

    def compact(self) -> int:
        """Forget every revision before the current one, which is returned; watches and lists from older ones fail."""
        revision = self.revision()
        self._call("/v3/kv/compaction", {"revision": revision, "physical": True})
        return revision

    def read_objects(self) -> Mapping[str, str]:
        """Everything that an API server has stored here: values by keys, both as the gateway has them, in base64."""
        answer = self._call("/v3/kv/range", {"key": _FIRST_KEY, "range_end": _LAST_KEY})
        return {entry["key"]: entry.get("value", "") for entry in answer.get("kvs", [])}

    def restore_objects(self, wanted: Mapping[str, str]) -> None:
        """Have exactly the objects that `read_objects` has answered with before. Idempotent.

        A running API server sees changes like any others, and its clients' watches go on.
        """
        present = self.read_objects()
        changes = [{"requestDeleteRange": {"key": key}} for key in present.keys() - wanted.keys()]
        changes += [
            {"requestPut": {"key": key, "value": value}} for key, value in wanted.items() if present.get(key) != value
        ]
        for begin in range(0, len(changes), _TRANSACTION):
            self._call("/v3/kv/txn", {"success": changes[begin : begin + _TRANSACTION]})

    def _call(self, path: str, message: dict[str, object]) -> dict[str, Any]:
        """One request to the gRPC gateway (etcd's documentation, "gRPC gateway")."""
        status, body = self._endpoint.request("POST", path, json.dumps(message).encode())
        if status != 200:
            raise EtcdError(f"etcd answered {path} with {status}: {body.decode(errors='replace').strip()}")
        answer: dict[str, Any] = json.loads(body)
        return answer


def _unsafe_flags(program: Path) -> list[str]:
    """``--unsafe-no-fsync`` where this etcd (3.5, and 3.4 from 3.4.19 on) knows it: unknown flags are errors to it."""
    flag = "--unsafe-no-fsync"
    known = subprocess.run([program, flag, "--version"], check=False, capture_output=True, timeout=60)
    return [flag] if known.returncode == 0 else []
