"""nftables through libnftables: one table as it should be, in one transaction. The only room that loads the library.

Place in the flow: `coil.egress` says which table is wanted (`coil.kernel.nft_table`), `coil.nat` has it made. From the
top:

    table_sync    makes the kernel's table the wanted one or takes it away, reads its counters
    difference    the commands that lead from what is listed to what is wanted: pure
    rendering     tables as the library's JSON: pure
    library       one transaction with libnftables, in a context of its own

All of it is synchronous, for a worker's thread, and is about the namespace that the thread is in.

Invariant: a table is changed whole or not at all, and no packet meets half of it.
"""
