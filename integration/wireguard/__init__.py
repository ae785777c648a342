"""The mesh of the EIP gateways in WireGuard, in a kernel that has it: real keys, and whoever listens or forges."""
