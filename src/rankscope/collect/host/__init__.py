"""What the host does between two profiled steps: samples of the main thread, exact marks, and the machine."""
