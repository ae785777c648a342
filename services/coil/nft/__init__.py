"""nftables: tables as they should be, each change in one transaction. The only room that loads libnftables.

Place in the flow: `coil.egress` and `coil.eip` say which table is wanted (`coil.kernel.nft_table`) and what is in its
sets (`coil.kernel.nft_element`), `coil.nat` and the node's agent have it made. From the top:

    kept_tables         the same tables again and again, without the library's reading them
    element_sync        loads, changes and reads what is in sets; keeps alive what expires
    table_sync          makes the kernel's table the wanted one or takes it away, reads its counters
    difference          the commands that lead from what is listed to what is wanted: pure
    rendering           tables as the library's JSON: pure
    element_rendering   elements as the library's JSON, and back: pure
    element_wire        elements as the kernel has them, made words: pure
    table_image         what a table is made of, in the kernel's bytes: what of it is not as it was
    library             one transaction with libnftables, in a context of its own
    netfilter_dump      what the kernel's tables hold, read without the library
    netfilter_message   the few things that are said to the kernel without the library

All of it is synchronous, for a worker's thread, and is about the namespace that the thread is in.

Invariant: a table is changed whole or not at all, and no packet meets half of it.
"""
