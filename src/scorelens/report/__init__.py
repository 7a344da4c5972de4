"""Pictures and tables of results. Reads what a run wrote, never runs a model."""
