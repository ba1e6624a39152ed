"""Execution traces linked with profiler traces: tables that are made when asked for, and the rules L5xx."""
