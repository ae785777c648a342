"""A provider driver of Octavia with the limits of OVN's, whose own needs an OVN: `ovn_octavia_provider.driver`.

What is accepted is for `octavia_api` to settle. Amphora's driver is the real one; what it tells workers goes nowhere.
"""

from typing import Any

from octavia.api.drivers.noop_driver.driver import NoopProviderDriver
from octavia_lib.api.drivers import data_models, exceptions


class OvnStandIn(NoopProviderDriver):  # type: ignore[misc]
    """See the module."""

    def create_vip_port(self, *arguments: Any) -> Any:
        """Leave the VIP's port to Octavia."""
        raise exceptions.NotImplementedError()

    def listener_create(self, listener: Any) -> None:
        """TCP, UDP and SCTP; no filter of clients."""
        if listener.protocol not in ("TCP", "UDP", "SCTP"):
            raise _refusal(f"OVN provider does not support {listener.protocol} protocol")
        if _given(listener.allowed_cidrs):
            raise _refusal("OVN provider does not support allowed_cidrs option")

    def pool_create(self, pool: Any) -> None:
        """One algorithm, and no persistence but by the client's address."""
        if pool.lb_algorithm != "SOURCE_IP_PORT":
            raise _refusal(f"OVN provider does not support {pool.lb_algorithm} algorithm")
        if _given(pool.session_persistence) and pool.session_persistence.get("type") != "SOURCE_IP":
            raise _refusal("OVN provider only supports SOURCE_IP session persistence")

    def member_create(self, member: Any) -> None:
        """A member is on a subnet."""
        if not _given(member.subnet_id):
            raise _refusal("OVN provider requires subnet_id for members")

    def member_batch_update(self, pool_id: str, members: Any) -> None:
        """The same for each."""
        for member in members:
            self.member_create(member)


def _given(value: Any) -> bool:
    return not isinstance(value, data_models.UnsetType) and bool(value)


def _refusal(text: str) -> exceptions.UnsupportedOptionError:
    return exceptions.UnsupportedOptionError(user_fault_string=text, operator_fault_string=text)
