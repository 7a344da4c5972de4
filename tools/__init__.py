"""Tools of the repository: the training queue of the zoo, and the writers of generated pages."""
