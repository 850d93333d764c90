"""What people and programs use: typed client, command line, importers of sources, evaluation."""
