"""The nodes of `integration.aws_nodes` with other values of the chart, in a VPC that has IPv6, too.

A folder of its own, so that one cluster is gone before the other is made: there is one EC2 in a process.
"""
