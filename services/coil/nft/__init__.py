"""nftables: tables as they should be, each change in one transaction. The only room that loads libnftables.

Place in the flow: `coil.egress`, `coil.eip` and `coil.podnet` say which table is wanted (`coil.kernel.nft_table`) and
what is in its sets (`coil.kernel.nft_element`), `coil.nat`, the node's agent and coild have it made. From the top:

    element_sync     what is in sets: compared, changed, its timeouts refreshed; tables compared without the library
    table_sync       makes the kernel's table the wanted one or takes it away, reads its counters: by libnftables
    difference       the commands that lead from what is listed to what is wanted: pure
    rendering        tables and elements as the library's JSON: pure
    versions         where versions of the library have different JSON: pure
    table_image      what a table is made of, in the kernel's bytes: what of it is not as it was
    element_codec    elements between the kernel's bytes and words: pure
    iptables_removal   what is another program's in the tables of iptables: found, removed
    netfilter        transactions of elements and dumps over netlink, without the library; NftError

All of it is synchronous, for a worker's thread, and is about the namespace that the thread is in. The seam that hides
it from the node's agent is `coil_egress_agent.eip.kernel.Tables`.

Invariant: a table is changed whole or not at all, and no packet meets half of it.
"""
