"""What an admin may set. The names and defaults are those of Coil v2; election, image and resync are new."""

from dataclasses import dataclass
from pathlib import Path

from coil.admission.settings import AdmissionSettings
from coil.runtime.duration import parse_period
from coil.runtime.election import ElectionSettings
from coil.runtime.endpoint import Endpoint, parse_open_endpoint
from coil.runtime.flag import flag, parse_integer, parse_optional_path, variable
from coil.runtime.settings import FrameSettings, health_flag, metrics_flag


def parse_optional_text(text: str) -> str:
    """Any text; empty means none."""
    return text


@dataclass(frozen=True, kw_only=True)
class Settings(AdmissionSettings, ElectionSettings, FrameSettings):
    """coil-egress-controller's settings; times are in seconds."""

    metrics_addr: Endpoint = metrics_flag(":9396")
    health_addr: Endpoint = health_flag(":9397")
    webhook_addr: Endpoint = flag(
        ":9444", parse=parse_open_endpoint, help="address of the webhooks; without a host, every address"
    )
    kubeconfig: Path | None = flag(
        "", parse=parse_optional_path, env="KUBECONFIG", help="how to reach the API server; in-cluster if not given"
    )
    egress_port: int = flag(
        "5555", parse=parse_integer(1, 65535), help="UDP port of the tunnels; coild must be told the same"
    )
    egress_image: str = flag(
        "", parse=parse_optional_text, help="image of the router pods; if not given, that of this controller's own pod"
    )
    resync_interval: float = flag(
        "1h", parse=parse_period, help="how often everything is compared with the API server, whatever has happened"
    )
    pod_namespace: str = variable(
        "COIL_POD_NAMESPACE", parse=parse_optional_text, default="", help="where this controller's own pod is"
    )
    pod_name: str = variable(
        "COIL_POD_NAME", parse=parse_optional_text, default="", help="the name of this controller's own pod"
    )
