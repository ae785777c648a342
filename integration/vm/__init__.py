"""A kernel with Foo-over-UDP for the tests that need one: this machine's where it has it, or a virtual machine's.

`python -m integration.vm -- COMMAND…`, or `run.run_with_fou` from Python. The way of a run: `feature` asks this kernel;
`kernel` has Debian's kernel in the cache; `layer` chooses the files that shall be fast inside, `bytecode` compiles the
modules among them, and `archive` packs all, with `boot` (the guest's first program), into an initial file system in
memory; `machine` runs QEMU and hands through output and exit code. Inside, the machine's own files are seen at their
own paths, read-only underneath, and what is written stays inside: only an explicit results folder is shared.

QEMU is driven directly: a general tool takes three times as long to boot here, mostly reading its programs over 9p.
"""
