"""The store behind an API server: one etcd member, with client certificates asked for on both its ports."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from integration.cluster.https import Endpoint
from integration.cluster.pki import CertificateAuthority
from integration.cluster.process import Process
from integration.cluster.workspace import Workspace

START_TIMEOUT = 30.0  # seconds


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
        address: str,
        ports: tuple[int, int],
    ) -> None:
        client, peer = (f"https://{address}:{port}" for port in ports)
        server = authority.issue("etcd", hosts=[address])
        self.url = client
        self.port = ports[0]
        self.authority = authority.certificate
        self.client = authority.issue("kube-apiserver-etcd-client")
        self._endpoint = Endpoint(address=address, port=ports[0], authority=authority.certificate, identity=self.client)
        self._process: Process = workspace.spawn(
            "etcd",
            [
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

    def _call(self, path: str, message: dict[str, object]) -> dict[str, dict[str, str]]:
        """One request to the gRPC gateway (etcd's documentation, "gRPC gateway")."""
        status, body = self._endpoint.request("POST", path, json.dumps(message).encode())
        if status != 200:
            raise EtcdError(f"etcd answered {path} with {status}: {body.decode(errors='replace').strip()}")
        answer: dict[str, dict[str, str]] = json.loads(body)
        return answer


def _unsafe_flags(program: Path) -> list[str]:
    """``--unsafe-no-fsync`` where this etcd (3.5, and 3.4 from 3.4.19 on) knows it: unknown flags are errors to it."""
    flag = "--unsafe-no-fsync"
    known = subprocess.run([program, flag, "--version"], check=False, capture_output=True, timeout=10)
    return [flag] if known.returncode == 0 else []
