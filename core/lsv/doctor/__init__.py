"""What ``lsv doctor`` finds out: what is installed, what the devices attain, and what belongs into a bug report."""
