"""docs/ as tests read it: `page` finds the blocks of its pages, and `command` what they say.

`execution` runs a block, `story` has their order and what each is to show, and `test_execution` plays it on `stage`.

`docs/README.md` has the conventions for whoever writes there.
"""
