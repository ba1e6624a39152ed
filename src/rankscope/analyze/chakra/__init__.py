"""Chakra graphs: made from linked traces, judged as a simulator would, replayed."""
