"""Frames in C and C++ of threads that wait in the kernel: read without stopping them or sending them a signal."""
