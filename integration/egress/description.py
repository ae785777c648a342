"""What the tests are told of the control plane that runs outside: a file, and its path in an environment variable."""

import json
import os
from dataclasses import asdict, dataclass, fields
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Self

VARIABLE = "COIL_EGRESS_STAGE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The API server, and its administrator; all files are the machine's."""

    address: str
    port: int
    authority: Path
    admin_certificate: Path
    admin_key: Path

    @property
    def host(self) -> IPv4Address:
        return IPv4Address(self.address)

    def write(self, path: Path) -> None:
        """To be read by `read`."""
        path.write_text(json.dumps({name: _plain(value) for name, value in asdict(self).items()}))

    @classmethod
    def read(cls) -> Self:
        """From the file that the environment names. Raises KeyError where it names none."""
        document = json.loads(Path(os.environ[VARIABLE]).read_text())
        paths = {field.name for field in fields(cls) if field.type is Path}
        values: dict[str, Any] = {name: Path(value) if name in paths else value for name, value in document.items()}
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description(Stage):
    """And who else may do what with it, and the program that the nodes need."""

    coild_kubeconfig: Path
    proxy_kubeconfig: Path
    proxy: Path
    proxy_version: str


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
