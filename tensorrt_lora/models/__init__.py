"""Model architectures, and how their weights are found and loaded."""
