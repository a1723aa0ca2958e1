"""Kind "d2ft"."""
