"""The plugin's side door into coild: gRPC on the node's Unix socket.

    coil_cni ─► listener (0600, one daemon per path) ─► call_gate (so many at once) ─► a CniBase of coild
             ◄─ status (CniError ↔ grpc-status-details-bin) ◄──────────────────────── result or CniError

`messages` and `descriptor` are generated from protos/cni.proto. `error` knows no gRPC: a service raises `CniError`
and `server` turns it into the status that plugins of every Coil v2 release understand.
"""
