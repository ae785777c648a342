"""kubeconfig files: how a program finds the API server and proves who it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from integration.cluster.pki import KeyPair


@dataclass(frozen=True, slots=True)
class Server:
    """An API server: its URL, and the file of the authority that its certificate is checked against."""

    url: str
    authority: Path


def write_certificate_kubeconfig(path: Path, server: Server, identity: KeyPair) -> Path:
    """A kubeconfig for a user with a client certificate; mode 0600."""
    return _write(path, server, {"client-certificate": str(identity.certificate), "client-key": str(identity.key)})


def write_token_kubeconfig(path: Path, server: Server, token_file: Path) -> Path:
    """A kubeconfig for a service account; the token stays in its own file, as it does in a pod. Mode 0600."""
    return _write(path, server, {"tokenFile": str(token_file)})


def _write(path: Path, server: Server, user: Mapping[str, str]) -> Path:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "coil", "cluster": {"server": server.url, "certificate-authority": str(server.authority)}}
        ],
        "users": [{"name": "coil", "user": dict(user)}],
        "contexts": [{"name": "coil", "context": {"cluster": "coil", "user": "coil"}}],
        "current-context": "coil",
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(document))
    return path
