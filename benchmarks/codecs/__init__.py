"""Measures bytes, time and error of link codecs."""
