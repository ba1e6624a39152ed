"""The data model that all rooms share."""
