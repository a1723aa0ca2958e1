"""Compares forecasts with rounds measured on fleets of containers."""
