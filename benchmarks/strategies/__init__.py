"""Measures each strategy's run file: forecast, rounds, samples per second, bytes, and what is special to it."""
