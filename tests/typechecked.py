"""The runtime type checker of the tests: beartype, with ints welcome where floats are expected (PEP 484)."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
