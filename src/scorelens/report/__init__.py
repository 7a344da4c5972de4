"""Tables, figures and HTML pages of results; nothing here runs a model."""
