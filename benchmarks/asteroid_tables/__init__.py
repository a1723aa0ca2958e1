"""Compares the tables and figures of the Asteroid paper with the same comparisons on simulated fleets."""
