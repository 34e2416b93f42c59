"""Flows that describe finite steps at the edge of stability."""
