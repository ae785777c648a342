"""`coil`, the CNI plugin: one process per operation on a pod's network, which asks coild and prints its answer.

    environment ─► invocation ─┐                                        ┌─ hpack
    stdin ───────► netconf ────┴► service ─► message ─► grpc ─► http2 ──┴─► coild's Unix socket
    stdout ◄────── service | error ◄──────────────────────────┤
                                        recorded_delete ◄─────┘ (a DEL while coild is away)

`plugin` is the whole of it, and the process around it.

Invariants: standard output is one CNI document or empty; nothing is sent to coild unless all input is valid; all
of it is over within a minute.

A container runtime waits for this process on every pod. So these modules do without everything that has to be
imported first: no site, os, re, enum, typing, dataclasses, json, socket or struct, each of which costs more than the
whole RPC. What they need of those is in builtin modules (posix, _socket, select, time). Classes are plain, with
slots; constants stand in for enums; imports for type checkers stay behind `TYPE_CHECKING = False`; and what not every
command needs is imported where it is needed.

On a node they run in the executable that coil_freezer makes of them: no other module, no codec, no standard stream.
"""
