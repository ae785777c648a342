"""What the tests are told of the control plane that runs outside: a file, and its path in an environment variable."""

import json
import os
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

VARIABLE = "COIL_EGRESS_STAGE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The API server, who may do what with it, and the program that the nodes need; all files are the machine's."""

    address: str
    port: int
    authority: Path
    admin_certificate: Path
    admin_key: Path
    coild_kubeconfig: Path
    proxy_kubeconfig: Path
    proxy: Path
    proxy_version: str

    @property
    def host(self) -> IPv4Address:
        return IPv4Address(self.address)

    def write(self, path: Path) -> None:
        """To be read by `read`."""
        path.write_text(json.dumps({name: _plain(value) for name, value in asdict(self).items()}))

    @classmethod
    def read(cls) -> "Description":
        """From the file that the environment names. Raises KeyError where it names none."""
        document = json.loads(Path(os.environ[VARIABLE]).read_text())
        paths = {name for name, kind in cls.__annotations__.items() if kind is Path}
        values: dict[str, Any] = {name: Path(value) if name in paths else value for name, value in document.items()}
        return cls(**values)


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
