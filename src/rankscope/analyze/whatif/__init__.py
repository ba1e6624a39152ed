"""How long a step would take if something were otherwise: a replay of what was recorded."""
