"""Tests of flows.comparison."""
