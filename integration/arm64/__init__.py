"""The image and the plugin for linux/arm64, built from the Dockerfile and executed by QEMU's user emulation.

Emulated are instructions and system calls of single programs; the kernel is this machine's. QEMU passes no netlink of
nftables on, so that here the plugin is the only one of Coil's programs that does its whole work: it speaks to a coild
of this machine.
"""
