"""What the numbers of the training itself say: losses, throughput and memory over its steps."""
