"""How the collector gets into a job: the environment that it is started with, and what its processes make of it."""
