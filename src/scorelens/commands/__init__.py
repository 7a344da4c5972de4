"""One plain function per command; the command line only parses and calls them."""
