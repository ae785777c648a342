"""What the stage is told of its control plane, by a file where that is on another machine."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "COIL_EIP_STAGE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The API server, its administrator, and the account of the agents; all files are the machine's."""

    address: str
    port: int
    authority: Path
    admin_certificate: Path
    admin_key: Path
    agent_kubeconfig: Path

    def write(self, path: Path) -> None:
        """To be read by `read`."""
        path.write_text(json.dumps(asdict(self), default=str))

    @classmethod
    def read(cls) -> "Description | None":
        """From the file that the environment names; None where it names none."""
        if VARIABLE not in os.environ:
            return None
        document = json.loads(Path(os.environ[VARIABLE]).read_text())
        address, port = document.pop("address"), document.pop("port")
        return cls(address=address, port=port, **{name: Path(value) for name, value in document.items()})
