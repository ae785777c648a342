"""The container image, made from the project's Dockerfile without Docker and without a registry.

dockerfile      the file as stages and steps; pure
context         which files of the checkout a step copies
base            Debian 13 from this machine's package sources, where the Dockerfile begins
emulation       another architecture's programs on this machine
layers          each step's files in the cache, carried out in a root of its own
build           `build_image()`: the archive that `ctr images import` takes
rootfs          an image's files as a read-only root that programs are started in
"""
