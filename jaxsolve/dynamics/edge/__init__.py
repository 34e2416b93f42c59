"""Flows that finite steps follow at the edge of stability."""
