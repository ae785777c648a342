"""The plugin's side door into coild: gRPC on the node's Unix socket.

    coil_cni ─► listener (0600, one daemon per path) ─► stream ─► call_gate (so many at once) ─► a CniBase of coild
             ◄─ error (CniError ↔ grpc-status-details-bin) ◄──────────────────────────────── result or CniError

`messages` and `descriptor` are generated from protos/cni.proto. A service raises `CniError`, and `server` turns it into
the status that plugins of every Coil v2 release understand.
"""
