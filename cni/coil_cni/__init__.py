"""`coil`, the CNI plugin: one process per ADD, DEL or CHECK of a pod, which asks coild and prints its answer.

    environment ─► invocation ─┐                              ┌─ hpack
    stdin ───────► netconf ────┴► message ─► grpc ─► http2 ───┴─► coild's Unix socket
    stdout ◄────── result | error ◄──────────┘

Invariants: standard output is one CNI document or empty; nothing is sent to coild unless all input is valid; all
of it is over within a minute.

A container runtime waits for this process on every pod, and an interpreter that starts up is most of that wait
(6 ms of 9). So these modules do without everything that has to be imported first: no site, os, re, enum, typing,
dataclasses, json, socket or struct, each of which costs more than the whole RPC. What they need of those is in
builtin modules (posix, _socket, time) and in json's accelerator (_json). Classes are plain, with slots;
constants stand in for enums; imports for type checkers stay behind `TYPE_CHECKING = False`.
"""
