"""The interactive page: a session that computes, a server that answers requests, and the page itself."""
