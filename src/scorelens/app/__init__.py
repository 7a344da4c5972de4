"""The interactive page: a session that computes, a server that lets it be asked, and the page that asks."""
