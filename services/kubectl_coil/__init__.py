"""kubectl-coil: what an admin runs as `kubectl coil`, to see, check and explain what Coil does in a cluster.

    main ─► options ─► status | ipam ─► cluster ─► kubernetes-asyncio ─► API server
                          │   pure: judge, describe
                          └─► output: tables, JSON, YAML

It reads. Each command gathers objects through `cluster.Reader`, makes one document of them, and prints that; what the
document means is decided by pure functions. The process ends after a command, so what takes long to import is imported
by the command that needs it: `kubectl coil --help` and completion wait for nothing.
"""
