#!/bin/bash
# Every bit of every byte of a checkpoint changed in turn, stretches lost, every length. A few minutes.
exec timeout 3600 tests/fault/test_h5_flip long
