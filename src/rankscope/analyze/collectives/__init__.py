"""Groups, calls and the time between them, of all sources that see collectives."""
