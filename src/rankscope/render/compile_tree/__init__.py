"""The report tree of compile logs: the files that tlparse writes, and an index that begins with the verdict."""
