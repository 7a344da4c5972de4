"""Runs that are results: what ran, on what, and what came out."""
