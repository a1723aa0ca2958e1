"""Tests of kind "deft"."""
