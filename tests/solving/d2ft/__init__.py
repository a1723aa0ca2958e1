"""Tests of kind "d2ft"."""
