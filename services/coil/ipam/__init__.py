"""Address management as arithmetic: pools are carved into blocks, blocks into addresses. Pure, no input or output."""
