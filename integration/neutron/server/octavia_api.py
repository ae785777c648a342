"""Serves Octavia's API on sqlite, without workers: what a provider would do is done between two calls.

    python octavia_api.py CONFIGURATION ADDRESS PORT

Run by the interpreter of `integration.neutron.environment`, with this folder on its path. A load balancer that was
changed is PENDING_… for a while (`SETTLE_SECONDS` in the environment) and then ACTIVE, or gone. Beside Octavia's own
paths:

    POST /test/hold         from now on they stay as they are
    POST /test/fail         from now on they come to be in ERROR
    POST /test/settle       as at first
    GET /test/writes        how many calls were to change something
"""

import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

_TEST_PATH = "/test/"


def main() -> None:
    configuration, address, port = sys.argv[1:]
    # Octavia parses it, too.
    sys.argv = ["octavia-api", f"--config-file={configuration}"]
    _create_schema(configuration)
    from octavia.api import app
    from oslo_config import cfg
    from serving import serve

    application = app.setup_app(argv=sys.argv[1:])
    _reach_neutron(os.environ["NEUTRON"])
    # Octavia's default is for pools of connections, which sqlite has none of.
    cfg.CONF.clear_default("pool_timeout", group="database")
    serve(Settling(application, float(os.environ["SETTLE_SECONDS"])), int(port), address=address)


def _create_schema(configuration: str) -> None:
    """From the models, with the values of their enumerations: the migrations, which add these, do not run on sqlite."""
    import configparser

    import sqlalchemy
    from octavia.common import constants
    from octavia.db import base_models, models

    parser = configparser.ConfigParser(interpolation=None)
    parser.read(configuration)
    engine = sqlalchemy.create_engine(parser["database"]["connection"])
    base_models.BASE.metadata.create_all(engine)
    values = {
        models.ProvisioningStatus: constants.SUPPORTED_PROVISIONING_STATUSES,
        models.OperatingStatus: constants.SUPPORTED_OPERATING_STATUSES,
        models.Protocol: constants.SUPPORTED_PROTOCOLS,
        models.Algorithm: constants.SUPPORTED_LB_ALGORITHMS,
        models.SessionPersistenceType: constants.SUPPORTED_SP_TYPES,
        models.HealthMonitorType: constants.SUPPORTED_HEALTH_MONITOR_TYPES,
        models.LBTopology: constants.SUPPORTED_LB_TOPOLOGIES,
        models.ClientAuthenticationMode: constants.SUPPORTED_CLIENT_AUTH_MODES,
    }
    with engine.begin() as connection:
        for model, names in values.items():
            connection.execute(model.__table__.insert(), [{"name": name} for name in sorted(set(names))])
    engine.dispose()


def _reach_neutron(endpoint: str) -> None:
    """Without authentication, which Octavia's own settings have no place for."""
    import openstack
    from octavia.common import clients

    clients.NeutronAuth.neutron_client = openstack.connect(
        load_yaml_config=False, load_envvars=False, auth_type="none", network_endpoint_override=endpoint
    )


class Settling:
    """The application, with the provider's work before each call."""

    def __init__(self, application: Callable[..., Iterable[bytes]], seconds: float) -> None:
        from octavia.api.drivers.driver_agent.driver_updater import DriverUpdater

        self._application = application
        self._seconds = seconds
        self._updater = DriverUpdater()
        self._order = "settle"
        self._writes = 0
        self._since: dict[str, float] = {}

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith(_TEST_PATH):
            return self._obey(path.removeprefix(_TEST_PATH), start_response)
        self._settle()
        try:
            return self._application(environ, start_response)
        finally:
            if environ["REQUEST_METHOD"] != "GET":
                self._writes += 1
                self._notice()

    def _obey(self, word: str, start_response: Callable[..., Any]) -> Iterable[bytes]:
        if word == "writes":
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [str(self._writes).encode()]
        self._order = word
        start_response("204 No Content", [])
        return []

    def _notice(self) -> list[Any]:
        """The load balancers that are pending, each with the time since when."""
        from octavia.db import api, models

        session = api.get_session()
        with session.begin():
            pending = [
                each.to_data_model()
                for each in session.query(models.LoadBalancer).filter(
                    models.LoadBalancer.provisioning_status.like("PENDING%")
                )
            ]
        now = time.monotonic()
        self._since = {each.id: self._since.get(each.id, now) for each in pending}
        return pending

    def _settle(self) -> None:
        if self._order == "hold":
            return
        for balancer in self._notice():
            if time.monotonic() - self._since[balancer.id] >= self._seconds:
                answer = self._updater.update_loadbalancer_status(self._outcome(balancer))
                assert answer["status_code"] == 200, answer

    def _outcome(self, balancer: Any) -> dict[str, Any]:
        deleted = balancer.provisioning_status == "PENDING_DELETE"
        members = [member for pool in balancer.pools for member in pool.members]
        monitors = [pool.health_monitor for pool in balancer.pools if pool.health_monitor is not None]
        policies = [policy for listener in balancer.listeners for policy in listener.l7policies]
        return {
            kind: [self._status(each, gone=deleted) for each in objects if deleted or _unsettled(each)]
            for kind, objects in (
                ("members", members),
                ("healthmonitors", monitors),
                ("pools", balancer.pools),
                ("l7policies", policies),
                ("listeners", balancer.listeners),
                ("loadbalancers", [balancer]),
            )
        }

    def _status(self, each: Any, *, gone: bool) -> dict[str, str]:
        if self._order == "fail":
            return {"id": each.id, "provisioning_status": "ERROR"}
        if gone or each.provisioning_status == "PENDING_DELETE":
            return {"id": each.id, "provisioning_status": "DELETED"}
        return {"id": each.id, "provisioning_status": "ACTIVE", "operating_status": "ONLINE"}


def _unsettled(each: Any) -> bool:
    return str(each.provisioning_status).startswith("PENDING")


if __name__ == "__main__":
    main()
