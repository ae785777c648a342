"""What the leader does for the network interfaces of all nodes, with `--address-source=aws-eni`.

    EC2 ─► OrphanCollector, SubnetWatch ─► EniView ─► metrics, inspection page
                                       └─► Events, log

Nodes make and delete their own interfaces; what none of them can see is done here, once and not two thousand times:
interfaces whose instance has gone, and subnets that run dry.
"""
