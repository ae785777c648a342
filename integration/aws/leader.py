"""The work of ipam-controller's leader on EC2, by the product's client, on a clock that is set by hand."""

from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta

import structlog
from prometheus_client import CollectorRegistry

from coil.aws.call_metrics import Ec2CallMetrics
from coil.aws.ec2 import Ec2
from coil_ipam_controller.eni.leader import connect_ec2
from coil_ipam_controller.eni.view import Deps, EniMetrics, EniView, event_subject
from integration.aws.strict_ec2 import REGION, StrictEc2
from tests.coil_ipam_controller.memory_recorder import MemoryRecorder

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class LeaderScene:
    """What the leader works with in a cluster. `clock` is in seconds since noon."""

    def __init__(self, account: StrictEc2, *, cluster: str) -> None:
        self.account = account
        self.clock = 0.0
        self.view = EniView(cluster)
        self.deps = Deps(
            view=self.view,
            metrics=EniMetrics(CollectorRegistry()),
            recorder=MemoryRecorder(),
            subject=event_subject("kube-system"),
            clock=lambda: self.clock,
            now=lambda: NOON + timedelta(seconds=self.clock),
            log=structlog.wrap_logger(structlog.ReturnLogger(), processors=[]),
        )

    def connect(self, *, region: str = REGION, metadata: str | None = None) -> AbstractAsyncContextManager[Ec2]:
        """Needs credentials in the environment; any will do."""
        return connect_ec2(
            region=region,
            ec2_endpoint=self.account.endpoint,
            metadata_endpoint=metadata,
            metrics=Ec2CallMetrics(),
            clock=lambda: self.clock,
            random=lambda: 0.0,
        )
