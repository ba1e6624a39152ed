"""torch's own debug server in a job, which `rankscope attach` asks."""
