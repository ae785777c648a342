"""What the tests are told of the control plane that runs outside: a file, and its path in an environment variable."""

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from integration.cluster.family import ClusterFamilies

VARIABLE = "COIL_EGRESS_STAGE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The API server, and its administrator; all files are the machine's."""

    address: str
    port: int
    authority: Path
    admin_certificate: Path
    admin_key: Path

    def write(self, path: Path) -> None:
        """To be read by `read`."""
        path.write_text(json.dumps({name: _plain(value) for name, value in asdict(self).items()}))

    @classmethod
    def read(cls) -> Self:
        """From the file that the environment names. Raises KeyError where it names none."""
        document = json.loads(Path(os.environ[VARIABLE]).read_text())
        return cls(**{field.name: _read(field.type, document[field.name]) for field in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Description(Stage):
    """And who else may do what with it, and the program that the nodes need."""

    coild_kubeconfig: Path
    proxy_kubeconfig: Path
    proxy: Path
    proxy_version: str
    families: ClusterFamilies


def _plain(value: object) -> object:
    match value:
        case Path():
            return str(value)
        case ClusterFamilies():
            return value.label
    return value


def _read(kind: Any, value: Any) -> Any:
    if kind is ClusterFamilies:
        return ClusterFamilies.named(value)
    return kind(value)
