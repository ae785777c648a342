"""The leader's work on the network interfaces of all nodes."""
