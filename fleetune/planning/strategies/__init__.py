"""The strategies, one file each; none imports another, nor `fleetune.planning.api`, which lists them."""
