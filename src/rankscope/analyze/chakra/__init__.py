"""Chakra graphs: made from linked traces, checked as a simulator would, replayed."""
