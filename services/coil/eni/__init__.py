"""Addresses of a VPC: what a node's elastic network interfaces have, who has what of it, and what EC2 is asked for.

Pure. An *interface* is an elastic network interface (ENI) that is attached to the node. It has *ranges*, each of which
takes one of its slots at EC2: a secondary address, or a prefix (/28, or /80 for IPv6). Pods get addresses of ranges,
never an interface's primary address.
"""
