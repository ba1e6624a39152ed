"""From linked tables to the graphs that simulators take."""
