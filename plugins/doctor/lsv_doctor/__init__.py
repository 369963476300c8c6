"""What ``lsv doctor`` finds out: what is installed, what the devices attain, and what belongs in a bug report."""
