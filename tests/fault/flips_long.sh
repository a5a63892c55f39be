#!/bin/bash
# flips.sh with every byte. A few minutes.
FLIP_STRIDE=1 exec bash "${srcdir:-.}/tests/fault/flips.sh"
