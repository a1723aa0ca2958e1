"""Measures the time that profiling takes each device, beside Table 8 of the Asteroid paper."""
