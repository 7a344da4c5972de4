"""The campaign of faults, kept as a suite: `make torture`. Not part of the tests; it takes hours at its full counts."""
