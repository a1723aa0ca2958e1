"""What the pipeline costs besides the work of its stages."""
