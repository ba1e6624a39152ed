"""The report tree of compile logs: the files that tlparse writes, and an index that starts with the verdict."""
