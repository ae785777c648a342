"""docs/ as tests read it: `page` finds the blocks of its pages, `command` what they say, and `execution` runs them.

`docs/README.md` has the conventions for whoever writes there.
"""
