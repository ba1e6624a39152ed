"""The state of each rank's collectives in the job's own key-value store, and the report that is made of it."""
