"""EC2 over HTTP: moto's, made as strict as AWS where moto lets things pass.

    with StrictEc2.start() as ec2:
        instance = ec2.launch("m5.large", ec2.subnet("10.1.0.0/24"))
        ... a client at ec2.endpoint ...

What is stricter: an address has one owner, and nobody gets those that AWS reserves; instances and interfaces have their
type's limits; what is in use is neither deleted nor its primary address taken; prefixes are aligned /28 of free
addresses; an answer has what the call brought about and nothing else; tokens, filters and pages work; an interface goes
with its instance only if it was told to. Every strictness has a test with AWS's error code, which the EC2 in memory
passes as well (`tests/coil/aws/ec2_contract.py`).

`faults` has calls refused, delayed, or carried out without an answer. `calls` is what was asked, in order.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import wraps
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from itertools import islice
from typing import Any
from unittest.mock import patch

from moto.core.responses import ActionResult, EmptyResult
from moto.ec2.exceptions import EC2ClientError, InvalidNetworkAttachmentIdError
from moto.ec2.models import ec2_backends
from moto.ec2.models import elastic_network_interfaces as models
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import Instance
from moto.ec2.responses import EC2Response
from moto.ec2.utils import add_tag_specification
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

from tests.coil.aws.faults import Call, Faults

REGION = "eu-central-1"
ZONE = f"{REGION}a"
ACCOUNT = "123456789012"
PREFIX_SIZE = 16
_RESERVED_AT_START, _RESERVED_AT_END = 4, 1
"""The first four addresses of a subnet and the last one (VPC User Guide, "Subnet CIDR blocks")."""
_ACTIONS = (
    *("create_network_interface", "delete_network_interface", "describe_network_interfaces"),
    *("attach_network_interface", "detach_network_interface", "modify_network_interface_attribute"),
    *("assign_private_ip_addresses", "unassign_private_ip_addresses", "assign_ipv6_addresses"),
    *("describe_instances", "describe_instance_types", "describe_subnets", "describe_vpcs", "describe_security_groups"),
)


class StrictEc2:
    """Make one with `start`; there is one at a time in a process."""

    def __init__(self, server: ThreadedMotoServer) -> None:
        host, port = server.get_host_and_port()
        self.endpoint = f"http://{host}:{port}"
        self.faults = Faults()
        self.calls: list[Call] = []
        self.lock = threading.RLock()
        self.watchers: list[Callable[[], None]] = []
        """Called after each change, before it is answered, with the lock held."""
        self._backend: Any = ec2_backends[ACCOUNT][REGION]
        self._vpcs: dict[str, Any] = {}
        self.told: deque[tuple[float, list[Any]]] = deque()
        """All interfaces since a moment, as copies, as long as descriptions lag behind."""
        self.tokens: dict[str, tuple[Any, Any]] = {}
        """By client token: what was asked with it, and the interface that came of it."""

    @classmethod
    @contextmanager
    def start(cls, *, address: str = "127.0.0.1", port: int = 0) -> Iterator["StrictEc2"]:
        """Serving. Ends with the context, and forgets all."""
        # Its log of every request tells nothing that `calls` does not.
        logging.getLogger("werkzeug").setLevel(logging.WARNING)
        server = ThreadedMotoServer(ip_address=address, port=port, verbose=False)
        server.start()
        ec2_backends[ACCOUNT][REGION].reset()
        ec2 = cls(server)
        try:
            with ec2._strict():
                yield ec2
        finally:
            server.stop()
            ec2_backends[ACCOUNT][REGION].reset()

    # --- what an administrator does

    @contextmanager
    def change(self) -> Iterator[Any]:
        """moto's backend, for what has no method here; those who watch hear of it at the end."""
        with self.lock:
            yield self._backend
            self._tell()

    def vpc(self, cidr: str = "10.1.0.0/16") -> str:
        """The id of the VPC with that CIDR, made on first use."""
        if cidr not in self._vpcs:
            self._vpcs[cidr] = self._backend.create_vpc(cidr).id
        vpc: str = self._vpcs[cidr]
        return vpc

    def subnet(
        self, cidr: str, *, vpc: str = "", ipv6: str = "", tags: dict[str, str] | None = None, zone: str = ZONE
    ) -> str:
        """The id of a new subnet, by default of the VPC 10.1.0.0/16; `ipv6` is a /64."""
        made = self._backend.create_subnet(
            vpc or self.vpc(), cidr, ipv6 or None, availability_zone=zone, tags={"subnet": tags or {}}
        )
        made.add_tags(tags or {})
        return str(made.id)

    def security_group(self, name: str, *, vpc: str = "") -> str:
        """The id of a new security group."""
        return str(self._backend.create_security_group(name, name, vpc_id=vpc or self.vpc()).id)

    def launch(self, instance_type: str, subnet: str, *, device: int = 0) -> str:
        """The id of a new instance with its primary interface, which some services have as another device than 0."""
        with self.change() as backend:
            reservation = backend.run_instances(
                "ami-12345678",
                1,
                b"",
                [],
                instance_type=instance_type,
                subnet_id=subnet,
                is_instance_type_default=False,
                placement={},
                region_name=REGION,
                key_name=None,
            )
            [made] = reservation.instances
            [primary] = made.nics.values()
            made.nics = {device: primary}
            primary.device_index = device
        return str(made.id)

    def terminate(self, instance: str) -> None:
        """Interfaces that are to go with it go, the others become available."""
        with self.change() as backend:
            gone = backend.get_instance(instance)
            for eni in list(gone.nics.values()):
                gone.detach_eni(eni)
                if eni.delete_on_termination or eni.launched:
                    del backend.enis[eni.id]
            backend.terminate_instances([instance])

    def count(self, action: str = "") -> int:
        """How often an operation was asked for, or all together."""
        return sum(call.action == action or not action for call in self.calls)

    # --- for those who watch

    @contextmanager
    def still(self) -> Iterator[Any]:
        """moto's backend, to be read while nothing changes."""
        with self.lock:
            yield self._backend

    def free_addresses(self, subnet: Any) -> list[str]:
        """Of a subnet of moto's, those that nobody has. With the lock held."""
        return [str(address) for address in self._free(subnet)]

    # --- strictness

    @contextmanager
    def _strict(self) -> Iterator[None]:
        actions = {
            "create_network_interface": self._create,
            "delete_network_interface": self._delete,
            "describe_network_interfaces": self._describe,
            "attach_network_interface": self._attach,
            "detach_network_interface": self._detach,
            "modify_network_interface_attribute": self._modify,
            "assign_private_ip_addresses": self._assign,
            "unassign_private_ip_addresses": self._unassign,
            "assign_ipv6_addresses": self._assign_ipv6,
        }
        patches: list[Any] = [
            patch.object(EC2Response, name, self._watched(name, actions.get(name) or getattr(EC2Response, name)))
            for name in _ACTIONS
        ]
        patches += [
            patch.object(models, "random_private_ip", self._random_address),
            patch.object(models.NetworkInterface, "ipv4_prefixes", [], create=True),
            patch.object(models.NetworkInterface, "ipv6_prefixes", [], create=True),
            patch.object(models.NetworkInterface, "launched", False, create=True),
            patch.object(models.NetworkInterface, "network_card", 0, create=True),
            patch.object(models.NetworkInterface, "attachment", property(_attachment)),
            patch.object(Instance, "attach_eni", self._attached_at_launch(Instance.attach_eni)),
        ]
        for each in patches:
            each.start()
        try:
            yield
        finally:
            for each in reversed(patches):
                each.stop()

    def _watched(self, name: str, method: Callable[[Any], Any]) -> Callable[[Any], Any]:
        action = "".join(part.capitalize() for part in name.split("_"))

        @wraps(method)
        def watched(response: Any) -> Any:
            error = ""
            if self.faults.latency:
                time.sleep(self.faults.latency)
            try:
                with self.lock:
                    if self.faults.random.random() < self.faults.throttled:
                        raise EC2ClientError("RequestLimitExceeded", "Request limit exceeded.")
                    self._note_told()
                    if waiting := self.faults.refusals.get(action):
                        raise EC2ClientError(waiting.pop(0), "injected")
                    self._authorize(action)
                    answer = method(response)
                    self._note_told()
                    if not action.startswith("Describe"):
                        self._tell()
                    if self.faults.lost_answers[action] > 0:
                        self.faults.lost_answers[action] -= 1
                        raise EC2ClientError("InternalError", "An internal error has occurred")
                    return answer
            except EC2ClientError as refusal:
                error = str(refusal.code)
                raise
            finally:
                self.calls.append(Call(action, error))

        return watched

    def _note_told(self) -> None:
        lag, now = self.faults.describe_lag, time.monotonic()
        if not lag:
            self.told.clear()
            return
        self.told.append((now, [_copy_of(eni) for eni in self._backend.enis.values()]))
        while len(self.told) > 1 and self.told[1][0] <= now - lag:
            self.told.popleft()

    def _authorize(self, action: str) -> None:
        if action in self.faults.denied:
            raise EC2ClientError("UnauthorizedOperation", "You are not authorized to perform this operation.")

    def _tell(self) -> None:
        for watcher in self.watchers:
            watcher()

    def _attached_at_launch(self, original: Callable[..., str]) -> Callable[..., str]:
        @wraps(original)
        def attach(instance: Any, eni: Any, device_index: int) -> str:
            # By this way come interfaces that an instance is launched with: they go with it.
            eni.launched = instance.id not in self._backend_instances()
            return original(instance, eni, device_index)

        return attach

    def _backend_instances(self) -> set[str]:
        return {
            instance.id for reservation in self._backend.reservations.values() for instance in reservation.instances
        }

    # --- addresses

    def _taken(self, subnet: Any) -> set[IPv4Address]:
        taken: set[IPv4Address] = set()
        for eni in self._backend.enis.values():
            if eni.subnet.id == subnet.id:
                taken |= {IPv4Address(each["PrivateIpAddress"]) for each in eni.private_ip_addresses}
                for each in eni.ipv4_prefixes:
                    taken |= {IPv4Address(int(address)) for address in IPv4Network(each["Ipv4Prefix"])}
        return taken

    def _free(self, subnet: Any) -> list[IPv4Address]:
        network = IPv4Network(subnet.cidr_block)
        usable = [network[index] for index in range(_RESERVED_AT_START, network.num_addresses - _RESERVED_AT_END)]
        taken = self._taken(subnet)
        return [address for address in usable if address not in taken]

    def _random_address(self, cidr: str, ipv6: bool = False) -> str:
        """In place of moto's: any free one of the subnet with that CIDR."""
        assert not ipv6
        subnet = next(
            each for zone in self._backend.subnets.values() for each in zone.values() if each.cidr_block == cidr
        )
        return self._pick_addresses(subnet, 1)[0]

    def _pick_addresses(self, subnet: Any, count: int) -> list[str]:
        free = self._free(subnet)
        if len(free) < count:
            raise EC2ClientError(
                "InsufficientFreeAddressesInSubnet",
                f"The specified subnet does not have enough free addresses to satisfy the request: {subnet.id}",
            )
        # Not in their order, as AWS does it: whoever relies on it fails.
        return [str(address) for address in self.faults.random.sample(free, count)]

    def _pick_prefixes(self, subnet: Any, count: int) -> list[str]:
        free = set(self._free(subnet))
        network = IPv4Network(subnet.cidr_block)
        blocks = [
            block
            for block in network.subnets(new_prefix=28)
            if all(IPv4Address(int(address)) in free for address in block)
        ]
        if len(blocks) < count:
            raise EC2ClientError(
                "InsufficientCidrBlocks",
                f"The specified subnet does not have enough free cidr blocks to satisfy the request: {subnet.id}",
            )
        return [str(block) for block in self.faults.random.sample(blocks, count)]

    def _limits(self, eni: Any) -> tuple[int, int]:
        """Interfaces, and addresses of each, of the instance that it is attached to; of none, 50 addresses."""
        if eni.instance is None:
            return 0, 50
        info = INSTANCE_TYPES[eni.instance.instance_type]["NetworkInfo"]
        return info["MaximumNetworkInterfaces"], info["Ipv4AddressesPerInterface"]

    def _check_room(self, eni: Any, more: int) -> None:
        used = len(eni.private_ip_addresses) + len(eni.ipv4_prefixes)
        if used + more > self._limits(eni)[1]:
            raise EC2ClientError(
                "PrivateIpAddressLimitExceeded",
                f"Number of private addresses will exceed limit. interface: {eni.id}, requested: {more}",
            )

    # --- operations

    def _create(self, response: Any) -> Any:
        count = int(response._get_param("SecondaryPrivateIpAddressCount") or 0)
        prefixes = int(response._get_param("Ipv4PrefixCount") or 0)
        token = response._get_param("ClientToken")
        subnet = self._backend.get_subnet(response._get_param("SubnetId"))
        groups = response._get_param("Groups", [])
        tags = add_tag_specification(response._get_param("TagSpecifications", []))
        asked = (subnet.id, count, prefixes, tuple(groups), tuple(sorted(tags.items())))
        if token in self.tokens:
            before, made = self.tokens[token]
            if before != asked:
                raise EC2ClientError(
                    "IdempotentParameterMismatch", "The request uses the same client token as a previous, other one."
                )
            return ActionResult({"NetworkInterface": made})
        if tags:
            self._authorize("CreateTags")
        if count and prefixes:
            raise EC2ClientError("InvalidParameterCombination", "Addresses or prefixes, not both.")
        addresses = self._pick_addresses(subnet, 1 + count)
        blocks = self._pick_prefixes(subnet, prefixes) if prefixes else []
        if blocks and any(IPv4Address(addresses[0]) in IPv4Network(block) for block in blocks):
            addresses = [address for address in map(str, self._free(subnet)) if not _within(address, blocks)][:1]
        eni = self._backend.create_network_interface(
            subnet,
            addresses[0],
            [{"Primary": index == 0, "PrivateIpAddress": each} for index, each in enumerate(addresses)],
            group_ids=groups,
            description=response._get_param("Description"),
            tags=tags,
        )
        eni.ipv4_prefixes = [{"Ipv4Prefix": block} for block in blocks]
        if token:
            self.tokens[token] = (asked, eni)
        return ActionResult({"NetworkInterface": eni})

    def _delete(self, response: Any) -> Any:
        eni = self._backend.get_network_interface(response._get_param("NetworkInterfaceId"))
        if eni.instance is not None:
            raise EC2ClientError("InvalidParameterValue", f"Network interface '{eni.id}' is currently in use.")
        del self._backend.enis[eni.id]
        return EmptyResult()

    def _describe(self, response: Any) -> Any:
        ids = response._get_param("NetworkInterfaceIds", [])
        filters = response._filters_from_querystring()
        told = self.told[0][1] if self.told else list(self._backend.enis.values())
        if missing := sorted(set(ids) - {eni.id for eni in told}):
            raise EC2ClientError(
                "InvalidNetworkInterfaceID.NotFound", f"The networkInterface ID '{missing[0]}' does not exist"
            )
        found = sorted((eni for eni in told if not ids or eni.id in ids), key=lambda eni: eni.id)
        for name, values in filters.items():
            found = [eni for eni in found if _filter_value(eni, name) in values]
        size = int(response._get_param("MaxResults") or 1000)
        start = int(response._get_param("NextToken") or 0)
        page: dict[str, Any] = {"NetworkInterfaces": found[start : start + size]}
        if start + size < len(found):
            page["NextToken"] = str(start + size)
        return ActionResult(page)

    def _attach(self, response: Any) -> Any:
        eni = self._backend.get_network_interface(response._get_param("NetworkInterfaceId"))
        instance = self._backend.get_instance(response._get_param("InstanceId"))
        device = int(response._get_param("DeviceIndex"))
        if eni.instance is not None:
            raise EC2ClientError("InvalidNetworkInterface.InUse", f"Interface: [{eni.id}] in use.")
        here = [each for each in instance.nics.values() if each.network_card == 0]
        if any(each.availability_zone != eni.availability_zone for each in here):
            raise EC2ClientError(
                "InvalidParameterCombination",
                "You may not attach a network interface to an instance if they are not in the same availability zone",
            )
        if device in {each.device_index for each in here}:
            raise EC2ClientError(
                "InvalidParameterValue", f"Instance '{instance.id}' already has an interface attached at device index"
            )
        info = INSTANCE_TYPES[instance.instance_type]["NetworkInfo"]
        if len(here) >= _limit_of_first_card(info):
            raise EC2ClientError(
                "AttachmentLimitExceeded",
                f"Interface count {len(here) + 1} exceeds the limit for {instance.instance_type}",
            )
        if eni.ipv4_prefixes:
            _check_prefixes(instance)
        if len(eni.private_ip_addresses) + len(eni.ipv4_prefixes) > info["Ipv4AddressesPerInterface"]:
            raise EC2ClientError("PrivateIpAddressLimitExceeded", f"interface: {eni.id}")
        eni.delete_on_termination = False
        attachment = self._backend.attach_network_interface(eni.id, instance.id, device)
        return ActionResult({"AttachmentId": attachment.attachment_id, "NetworkCardIndex": 0})

    def _detach(self, response: Any) -> Any:
        attachment = response._get_param("AttachmentId")
        for eni in self._backend.enis.values():
            if eni.attachment_id == attachment:
                if eni.device_index == 0 or eni.launched:
                    raise EC2ClientError(
                        "OperationNotPermitted", "The network interface at device index 0 cannot be detached."
                    )
                eni.instance.detach_eni(eni)
                return EmptyResult()
        raise InvalidNetworkAttachmentIdError(attachment)

    def _modify(self, response: Any) -> Any:
        eni = self._backend.get_network_interface(response._get_param("NetworkInterfaceId"))
        change = response._get_param("Attachment") or {}
        if change:
            if eni.attachment_id != change.get("AttachmentId"):
                raise InvalidNetworkAttachmentIdError(str(change.get("AttachmentId")))
            eni.delete_on_termination = str(change.get("DeleteOnTermination")).lower() == "true"
        if groups := response._get_param("Groups", []):
            eni._group_set = [self._backend.get_security_group_from_id(group) for group in groups]
        return EmptyResult()

    def _assign(self, response: Any) -> Any:
        eni = self._backend.get_network_interface(response._get_param("NetworkInterfaceId"))
        count = int(response._get_param("SecondaryPrivateIpAddressCount") or 0)
        prefixes = int(response._get_param("Ipv4PrefixCount") or 0)
        if bool(count) == bool(prefixes):
            raise EC2ClientError("InvalidParameterCombination", "Addresses or prefixes, one of the two.")
        if prefixes and eni.instance is not None:
            _check_prefixes(eni.instance)
        self._check_room(eni, count + prefixes)
        answer: dict[str, Any] = {"NetworkInterfaceId": eni.id}
        if count:
            new = self._pick_addresses(eni.subnet, count)
            eni.private_ip_addresses += [{"Primary": False, "PrivateIpAddress": each} for each in new]
            answer["AssignedPrivateIpAddresses"] = [{"PrivateIpAddress": each} for each in new]
        else:
            blocks = [{"Ipv4Prefix": block} for block in self._pick_prefixes(eni.subnet, prefixes)]
            eni.ipv4_prefixes = [*eni.ipv4_prefixes, *blocks]
            answer["AssignedIpv4Prefixes"] = blocks
        return ActionResult(answer)

    def _assign_ipv6(self, response: Any) -> Any:
        eni = self._backend.get_network_interface(response._get_param("NetworkInterfaceId"))
        if int(response._get_param("Ipv6PrefixCount") or 0) != 1:
            raise EC2ClientError("InvalidParameterCombination", "Here, one prefix is all that can be asked for.")
        networks = [each["ipv6CidrBlock"] for each in eni.subnet.ipv6_cidr_block_associations.values()]
        if not networks:
            raise EC2ClientError("InvalidParameterValue", f"The subnet {eni.subnet.id} has no IPv6 CIDR block")
        taken = {each["Ipv6Prefix"] for other in self._backend.enis.values() for each in other.ipv6_prefixes}
        # A /64 has 65536 of them: one of the first few hundred is not in their order either.
        blocks = map(str, islice(IPv6Network(networks[0]).subnets(new_prefix=80), 1, 512))
        prefix = self.faults.random.choice([block for block in blocks if block not in taken])
        eni.ipv6_prefixes = [*eni.ipv6_prefixes, {"Ipv6Prefix": prefix}]
        return ActionResult({"NetworkInterfaceId": eni.id, "AssignedIpv6Prefixes": [prefix]})

    def _unassign(self, response: Any) -> Any:
        eni = self._backend.get_network_interface(response._get_param("NetworkInterfaceId"))
        addresses = response._get_param("PrivateIpAddresses", [])
        prefixes = response._get_param("Ipv4Prefixes", [])
        known = {each["PrivateIpAddress"]: each for each in eni.private_ip_addresses}
        blocks = {each["Ipv4Prefix"] for each in eni.ipv4_prefixes}
        for address in addresses:
            if address not in known or known[address]["Primary"]:
                raise EC2ClientError(
                    "InvalidParameterValue", f"Some of [{address}] are not assigned to interface {eni.id}, or primary"
                )
        if not set(prefixes) <= blocks:
            raise EC2ClientError("InvalidParameterValue", f"Some of {prefixes} are not assigned to interface {eni.id}")
        eni.private_ip_addresses = [
            each for each in eni.private_ip_addresses if each["PrivateIpAddress"] not in addresses
        ]
        eni.ipv4_prefixes = [each for each in eni.ipv4_prefixes if each["Ipv4Prefix"] not in prefixes]
        return EmptyResult()


def _attachment(eni: Any) -> Any:
    """In place of moto's, which knows one network card only."""
    if not eni.attachment_id:
        return None
    attachment = models.Attachment(eni)
    attachment.network_card_index = eni.network_card
    return attachment


def _copy_of(eni: Any) -> Any:
    """As it is now, whatever becomes of it."""
    made = copy(eni)
    for name in ("private_ip_addresses", "ipv4_prefixes", "ipv6_prefixes", "ipv6_addresses", "_group_set"):
        setattr(made, name, list(getattr(eni, name)))
    return made


def _check_prefixes(instance: Any) -> None:
    if INSTANCE_TYPES[instance.instance_type].get("Hypervisor") == "xen":
        raise EC2ClientError("UnsupportedOperation", f"Instances of this type have no prefixes: {instance.id}")


def _limit_of_first_card(info: Any) -> int:
    """Interfaces; a description of all cards together has the sum of all."""
    cards = {each["NetworkCardIndex"]: each for each in info.get("NetworkCards", ())}
    return int(cards.get(0, info)["MaximumNetworkInterfaces"])


def _within(address: str, blocks: Sequence[str]) -> bool:
    return any(IPv4Address(address) in IPv4Network(block) for block in blocks)


def _filter_value(eni: Any, name: str) -> str | None:
    if name.startswith("tag:"):
        tags = {tag["key"]: str(tag["value"]) for tag in eni.get_tags()}
        return tags.get(name.removeprefix("tag:"))
    values = {
        "network-interface-id": eni.id,
        "attachment.instance-id": eni.instance.id if eni.instance else "",
        "attachment.status": "attached" if eni.instance else "detached",
        "attachment.device-index": str(eni.device_index) if eni.instance else "",
        "status": eni.status,
        "subnet-id": eni.subnet.id,
        "vpc-id": eni.subnet.vpc_id,
    }
    if name not in values:
        raise EC2ClientError("InvalidParameterValue", f"The filter '{name}' is invalid")
    return str(values[name])
