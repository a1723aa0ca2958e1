"""Tests of kind "split"."""
