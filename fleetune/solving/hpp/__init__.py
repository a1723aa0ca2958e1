"""Kind "hpp": hybrid pipeline parallelism, after Asteroid (MobiCom 2024); the format is the project's contract."""
