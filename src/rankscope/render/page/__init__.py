"""The report as one page: each view in a file of its own, put together by writer.py."""
