"""Runs every case, or those whose name contains the argument."""

import sys

import harness
import with_astarte  # noqa: F401  its cases
import with_paho  # noqa: F401  its cases

sys.exit(1 if harness.run_all(*sys.argv[1:2]) else 0)
